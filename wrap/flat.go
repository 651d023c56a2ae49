package wrap

import (
	"time"

	"headroom/memory"
)

// DefaultFlatFor is how long the memory of a trial has to stay flat where its steps
// cannot be limited. It has to be longer than an optimizer step: the optimizer's
// state is allocated in the first one.
const DefaultFlatFor = time.Minute

// sample is one look at the GPUs of a trial.
type sample struct {
	at   time.Duration // since the trial was started
	peak memory.Bytes  // the most that its processes had held until then, summed over the GPUs
	busy bool          // a GPU was computing
}

// flat reports whether a trial has shown how much memory it needs: its processes hold
// some, no sample has found more than before for at least lasting, and in at least half
// of the samples since then a GPU was computing. Without that last rule, loading data or
// compiling after the model is on the GPU would pass for training. Missing samples, as
// after the machine was suspended, do not count as quiet ones. samples are in order of
// time, sampleEvery apart. Pure.
func flat(samples []sample, lasting time.Duration) bool {
	if len(samples) == 0 || samples[len(samples)-1].peak == 0 {
		return false
	}
	newest := samples[len(samples)-1]
	since, busy := 0, 0
	begin := newest.at
	for i := len(samples) - 1; i >= 0 && samples[i].peak == newest.peak; i-- {
		since++
		if samples[i].busy {
			busy++
		}
		begin = samples[i].at
	}
	return newest.at-begin >= lasting && 2*busy >= since && time.Duration(since)*sampleEvery >= lasting/2
}
