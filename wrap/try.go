package wrap

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"headroom/harness"
	"headroom/machine"
	"headroom/memory"
	"headroom/nvml"
	"headroom/recovery"
	"headroom/wrap/child"
	"headroom/wrap/command"
	"headroom/wrap/rewrite"
)

const (
	// unsettled is how long headroom waits for the memory of a trial without a step
	// limit to become flat.
	unsettled = 30 * time.Minute
	// goodbye is how long a trial has to end by itself after the user has asked to stop. It
	// is also the time from headroom's request to end until headroom kills the trial. Both
	// times are short, since a trial has nothing to save.
	goodbye = 10 * time.Second
)

// Trials runs trials of a command: short runs that leave nothing behind.
type Trials struct {
	Match   *rewrite.Match
	FlatFor time.Duration // how long memory has to stay flat before a trial without a step limit is ended
	Memory  memory.Bytes  // memory of the GPU to simulate; 0 means that of the real GPU
	Trouble func(error)   // receives what went wrong around the command

	gpus func() ([]nvml.GPU, error) // nil means nvml.GPUs; tests replace it with a fake
}

// Try runs one trial of the plan p: it runs the command for a few steps, without input or
// visible output, and with a temporary folder to write to. A trial that fits ends when
// its steps are done. If the profile cannot limit the steps, the trial is asked to end
// when the memory of its GPUs has stayed flat. If ctx is cancelled, the trial is asked to
// end, and is killed only if it does not.
//
// The error is a *[TrialError] if the trial failed for a reason other than memory, a
// *[harness.GaveUpError] if no smaller micro-batch could help, an *[UntriableError] if
// the trial is not possible, an error of [rewrite.Rehearse], or [harness.ErrInterrupted].
func (t *Trials) Try(ctx context.Context, p recovery.Plan) (_ Tried, err error) {
	folder, err := os.MkdirTemp("", "headroom-trial-")
	if err != nil {
		return Tried{}, fmt.Errorf("create a folder for a trial: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	next, err := rewrite.Rehearse(t.Match, p, folder)
	if err != nil {
		return Tried{}, err
	}
	if err := next.Write(); err != nil {
		return Tried{}, errors.Join(err, next.Remove())
	}
	defer func() { err = errors.Join(err, next.Remove()) }()
	c, err := t.environment(next.Command, p)
	if err != nil {
		return Tried{}, err
	}
	exit, stayed, err := t.live(ctx, c)
	if err != nil {
		return Tried{}, err
	}
	if ctx.Err() != nil || exit.Stopped && !stayed {
		return Tried{}, harness.ErrInterrupted
	}
	return t.judge(p, exit, stayed, machine.LookAtMemory().Most())
}

// environment returns c with the environment of a trial of p. It tells the command that it
// is a trial, limits the allocator if less memory is to be simulated, and turns off the use of the
// host's memory: a size that needs that must not count as one that fits.
func (t *Trials) environment(c command.Line, p recovery.Plan) (command.Line, error) {
	c.Env = append(c.Env[:len(c.Env):len(c.Env)], "HEADROOM_TRIAL=1", "HEADROOM_SPILL=off", "HEADROOM_MICRO="+strconv.Itoa(p.Largest()))
	if t.Memory == 0 {
		return c, nil
	}
	all, err := listed(t.gpus)
	if err != nil {
		return c, &rewrite.UntriableError{Reason: fmt.Sprintf("less memory can be simulated only on a GPU: %v", err)}
	}
	total := memory.Bytes(0)
	for _, g := range c.GPUs(all) {
		total = max(total, g.Total)
	}
	return capped(c, t.Memory, total)
}

// live runs the trial c. stayed means that it was ended because its memory had stayed flat.
func (t *Trials) live(ctx context.Context, c command.Line) (exit command.Exit, stayed bool, err error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return command.Exit{}, false, err
	}
	defer func() { err = errors.Join(err, null.Close()) }()
	child, err := child.Start(c, child.Options{Stdin: null, Stdout: null, Stderr: null, Patience: goodbye, Trouble: t.Trouble})
	if err != nil {
		return command.Exit{}, false, err
	}
	trace := &gpuTrace{c: c, list: t.gpus, mine: child.Owns}
	stayed, late := t.watch(ctx, child, trace)
	exit = child.Wait()
	exit.GPUs = trace.seen
	for _, holder := range trace.drain(ctx, harness.Sleep) {
		t.Trouble(fmt.Errorf("%s still holds memory %v after a trial ended", holder, drainPatience))
	}
	if late {
		err = &rewrite.UntriableError{Reason: fmt.Sprintf("in %v, the trial's memory use never stayed flat for %v with a GPU busy", unsettled, t.FlatFor),
			Hint: "name the flag that sets the training's length in optimizer steps, with --knob steps=FLAG, or give a shorter --flat-for"}
	}
	return exit, stayed, err
}

// watch samples the GPUs of a trial until the trial is over. It also ends a trial that
// has no step limit: stayed means that watch ended it because memory had stayed flat for
// long enough, and late means that watch ended it because memory had not stayed flat for
// long enough by the time unsettled was over. When ctx is cancelled, the child has
// received the user's signal as well, so watch gives it some time before it ends the
// child.
func (t *Trials) watch(ctx context.Context, child *child.Child, trace *gpuTrace) (stayed, late bool) {
	var samples []sample
	begun, limited := time.Now(), t.Match.Profile.Trial.Steps > 0
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	asked, patience := ctx.Done(), (<-chan time.Time)(nil)
	for trace.sample(); ; {
		select {
		case <-child.Done():
			return stayed, late
		case <-asked:
			asked, patience = nil, time.After(goodbye)
		case <-patience:
			child.Stop()
		case <-tick.C:
			trace.sample()
		}
		if limited || stayed || late {
			continue
		}
		now := sample{at: time.Since(begun), busy: trace.busy}
		for _, g := range trace.seen {
			now.peak += g.Peak
		}
		samples = append(samples, now)
		stayed = flat(samples, t.FlatFor)
		if late = !stayed && now.at > unsettled; stayed || late {
			child.Stop()
		}
	}
}

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
