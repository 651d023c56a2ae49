package wrap

import (
	"time"

	"headroom/memory"
)

// DefaultFlatFor is how long the memory of a trial has to stay flat if the number of its
// steps cannot be limited. It has to be longer than an optimizer step, because the first
// one allocates the optimizer's state.
const DefaultFlatFor = time.Minute

// sample is one look at the GPUs of a trial.
type sample struct {
	at   time.Duration // since the trial was started
	peak memory.Bytes  // the most that its processes had held so far, summed over the GPUs
	busy bool          // a GPU was computing
}

// flat reports whether a trial has shown how much memory it needs. Its processes must
// hold some memory, and their peak must not have risen for at least the duration lasting.
// In at least half of the samples taken since the peak last rose, a GPU must have been
// computing. Otherwise, loading data or compiling after the model is on the GPU would
// pass for training. At least half of the samples that are due within that duration must
// exist, so that time for which the machine was suspended does not count. samples are in
// order of time, sampleEvery apart.
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
