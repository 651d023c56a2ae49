package wrap

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"headroom/harness"
	"headroom/memory"
	"headroom/recovery"
	"headroom/runs"
	"headroom/wrap/checkpoints"
	"headroom/wrap/command"
	"headroom/wrap/exits"
)

// toyCommand simulates a command for Run: its attempts, its checkpoints and its memory.
type toyCommand struct {
	steps, every int                              // steps to train, and steps between checkpoints
	fits         func(step int) int               // largest micro-batch for which a step has enough memory
	foreign      func(attempt int) memory.Bytes   // how much of 24 GiB other processes hold
	ends         func(attempt int) *exits.Outcome // how an attempt ends before its first step; nil if it does not
	saved        checkpoint
	attempts     int
	young        float64                        // seconds that an attempt lasts if it does not finish
	lasts        int                            // steps for which an attempt has enough memory; 0 means no limit
	grows        bool                           // a worker inside saw the memory in use grow from step to step
	leaks        int                            // steps after which an attempt is ended because it leaks; 0 if it does not leak
	resume       func(attempt int) memory.Phase // phase in which resuming from a checkpoint runs out of memory; "" if it works
	unloadable   []string                       // paths of checkpoints from which the command fails to resume
	differ       int                            // 1 if each of them fails for another reason, or 0
	rejected     []string                       // paths that Run has rejected
	judged       string                         // what Run has said about them, in order
	older        []checkpoint                   // checkpoints before saved, newest last
	trace        []string
	made         map[int]int // step → number of samples when it was last trained
}

func (c *toyCommand) attempt(_ context.Context, b beginning) (exits.Outcome, command.Exit, error) {
	plan, from := b.Plan, b.From
	c.attempts++
	begin := 0
	if from != nil {
		begin = from.Step
	}
	name := fmt.Sprintf("%d×%d@%d", plan.Largest(), plan.Accumulation(), begin)
	if from != nil {
		name += fmt.Sprintf("(%d)", from.Micro)
	}
	for _, fallback := range b.fallbacks() {
		name += "+" + fallback
	}
	if c.ends != nil {
		if o := c.ends(c.attempts); o != nil {
			c.trace = append(c.trace, name+"?")
			return *o, c.exit(3, c.young), nil
		}
	}
	if c.resume != nil && from != nil {
		if phase := c.resume(c.attempts); phase != "" {
			c.trace = append(c.trace, name+"!"+string(phase))
			o := c.ranOut()
			o.Evidence.Failure.Phase, o.Hopeless = phase, exits.OtherKnobs[phase]
			return o, c.exit(1, c.young), nil
		}
	}
	if from != nil && slices.Contains(c.unloadable, from.Path) {
		c.trace = append(c.trace, name+"?")
		return exits.Outcome{Kind: exits.Failed, Reasons: []string{"KeyError", "EOFError", "ValueError"}[len(c.rejected)*c.differ:][:1]}, c.exit(3, c.young), nil
	}
	for step := begin + 1; step <= c.steps; step++ {
		if c.leaks > 0 && step > begin+c.leaks {
			c.trace = append(c.trace, name+"~")
			return exits.Outcome{Kind: exits.Leaking, Confidence: exits.Certain, Reasons: []string{"it leaks"}}, c.exit(143, 60), nil
		}
		if n := plan.Largest(); n > c.fits(step) || c.lasts > 0 && step > begin+c.lasts {
			c.trace = append(c.trace, name+"!")
			return c.ranOut(), c.exit(1, c.young), nil
		}
		c.made[step] = plan.Largest() * plan.Accumulation()
		if step%c.every == 0 {
			c.older = append(c.older, c.saved)
			c.saved = checkpoint{Path: fmt.Sprintf("step-%d", step), Step: step, Time: time.Date(2026, 1, 1, 2, step, 0, 0, time.UTC)}
		}
	}
	c.trace = append(c.trace, name)
	return exits.Outcome{Kind: exits.Done}, c.exit(0, 60), nil
}

// exit returns the Exit of an attempt that lasted the given number of seconds and ended two
// minutes after the newest checkpoint was written.
func (c *toyCommand) exit(code int, seconds float64) command.Exit {
	return command.Exit{Code: code, Seconds: seconds, Began: c.saved.Time.Add(2*time.Minute - time.Duration(seconds*float64(time.Second)))}
}

// newest returns the newest checkpoint, as if read from disk.
func (c *toyCommand) newest() (*checkpoint, error) {
	if c.saved.Path == "" {
		return nil, nil
	}
	for _, found := range slices.Backward(append(slices.Clone(c.older), c.saved)) {
		if found.Path != "" && !slices.Contains(c.rejected, found.Path) {
			return &found, nil
		}
	}
	return nil, nil
}

// faked is a run of a toy. A test may replace what it consists of, one by one.
type faked struct {
	toy                        *toyCommand
	resumes, chooses, recovers bool
	try                        func(context.Context, beginning) (exits.Outcome, command.Exit, error)
	find                       func() (*checkpoint, error)
	steps                      func() int
	clears                     func(context.Context) string
	left                       func() string
	sleep                      func(context.Context, time.Duration) error
}

func (f *faked) run(ctx context.Context, s *harness.Session) (harness.Result, int, error) {
	r := &runner{attempts: f, s: s, resumes: f.resumes, chooses: f.chooses, recovers: f.recovers, sleep: f.sleep}
	return r.run(ctx)
}

func (f *faked) attempt(ctx context.Context, b beginning) (exits.Outcome, command.Exit, error) {
	return f.try(ctx, b)
}

func (f *faked) newest() (*checkpoint, error)     { return f.find() }
func (f *faked) check(beginning) error            { return nil }
func (f *faked) made() int                        { return f.steps() }
func (f *faked) clear(ctx context.Context) string { return f.clears(ctx) }
func (f *faked) leftText() string                 { return f.left() }
func (f *faked) reject(saved *checkpoint)         { f.toy.rejected = append(f.toy.rejected, saved.Path) }
func (f *faked) judge(bad bool)                   { f.toy.judged += fmt.Sprint(len(f.toy.rejected), bad, " ") }

func (c *toyCommand) ranOut() exits.Outcome {
	stats := memory.Stats{Capacity: 24 * memory.GiB, Reserved: 23 * memory.GiB, Allocated: 22 * memory.GiB}
	if c.foreign != nil {
		if taken := c.foreign(c.attempts); taken > 0 {
			stats.Foreign = taken
			stats.Reserved, stats.Allocated = 24*memory.GiB-taken, 23*memory.GiB-taken
		}
	}
	var held []memory.Bytes
	if c.grows {
		for i := range memory.Bytes(memory.LeakWindow) {
			held = append(held, 2*memory.GiB+i*memory.GiB)
		}
	}
	return exits.Outcome{Kind: exits.OutOfMemory, Confidence: exits.Certain, Reasons: []string{"torch.OutOfMemoryError in forward"},
		Evidence: &memory.Evidence{Boundary: held, Every: 10, Failure: memory.OutOfMemoryError{Requested: 2 * memory.GiB, Phase: memory.PhaseForward, Stats: stats}}}
}

// wrapped runs c for a plan. It returns the trace of the attempts, the exit status and the
// error.
func wrapped(t *testing.T, c *toyCommand, plan recovery.Plan, policy recovery.Policy, change func(*faked)) (string, int, error) {
	t.Helper()
	return wrappedIn(context.Background(), t, c, plan, policy, change)
}

func wrappedIn(ctx context.Context, t *testing.T, c *toyCommand, plan recovery.Plan, policy recovery.Policy, change func(*faked)) (string, int, error) {
	t.Helper()
	folder, err := runs.Open(filepath.Join(t.TempDir(), "run"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := folder.Close(); err != nil {
			t.Error(err)
		}
	}()
	s, err := harness.Begin(folder, harness.SessionOptions{Plan: plan, Policy: policy})
	if err != nil {
		t.Fatal(err)
	}
	c.made = map[int]int{}
	o := &faked{try: c.attempt, find: c.newest, resumes: true, recovers: true, toy: c,
		steps: func() int { return -1 }, clears: func(context.Context) string { return "" }, left: func() string { return "" },
		sleep: func(context.Context, time.Duration) error { c.trace = append(c.trace, "wait"); return nil }}
	if change != nil {
		change(o)
	}
	_, code, err := o.run(ctx, s)
	return strings.Join(c.trace, " "), code, err
}

func TestRun(t *testing.T) {
	always := func(n int) func(int) int { return func(int) int { return n } }
	from := func(step, before, after int) func(int) int {
		return func(s int) int {
			if s >= step {
				return after
			}
			return before
		}
	}
	plan := recovery.Plan{Effective: 64, World: 1, Micro: 64, Uniform: true}
	again := recovery.Policy{Relaunches: 3}
	host := func(attempts int) func(int) *exits.Outcome {
		return func(attempt int) *exits.Outcome {
			if attempt > attempts {
				return nil
			}
			return &exits.Outcome{Kind: exits.OutOfSharedMemory, Confidence: exits.Certain, Evidence: &memory.Evidence{}}
		}
	}
	foreignLoad := func(attempt int) *exits.Outcome {
		if attempt > 1 {
			return nil
		}
		o := (&toyCommand{foreign: func(int) memory.Bytes { return 20 * memory.GiB }}).ranOut()
		o.Evidence.Failure.Phase, o.Hopeless = memory.PhaseLoad, exits.OtherKnobs[memory.PhaseLoad]
		return &o
	}
	first := func(p memory.Phase, attempts int) func(int) memory.Phase {
		return func(attempt int) memory.Phase {
			if attempt <= attempts {
				return p
			}
			return ""
		}
	}
	for _, c := range []struct {
		name    string
		command toyCommand
		plan    recovery.Plan
		policy  recovery.Policy
		change  func(*faked)
		want    string
		code    int
	}{
		{name: "it runs out as it leaks, and may be started again: as large, from its newest checkpoint", policy: again,
			command: toyCommand{fits: from(11, 64, 40), grows: true}, want: "64×1@0! 64×1@8(64)! 32×2@8(64)"},
		{name: "it runs out as it leaks after each checkpoint: as often as it takes", policy: again,
			command: toyCommand{fits: always(64), grows: true, lasts: 5}, want: "64×1@0! 64×1@4(64)! 64×1@8(64)! 64×1@12(64)! 64×1@16(64)"},
		{name: "it runs out as it leaks, and may not: smaller",
			command: toyCommand{fits: from(11, 64, 40), grows: true}, want: "64×1@0! 32×2@8(64)"},
		{name: "it leaks: on from each checkpoint, however often",
			command: toyCommand{fits: always(64), leaks: 4}, want: "64×1@0~ 64×1@4(64)~ 64×1@8(64)~ 64×1@12(64)~ 64×1@16(64)"},
		{name: "it leaks, and nothing may be changed", command: toyCommand{fits: always(64), leaks: 4}, change: func(o *faked) { o.recovers = false }, want: "64×1@0~", code: 143},
		{name: "it was ended for a leak before it had a checkpoint: that is no reason", command: toyCommand{fits: always(64), leaks: 3}, want: "64×1@0~", code: 143},
		{name: "what fits is left alone", command: toyCommand{fits: always(64)}, want: "64×1@0"},
		{name: "too large from the start: half, and half again", command: toyCommand{fits: always(20)}, want: "64×1@0! 32×2@0! 16×4@0"},
		{name: "too large late: on from the newest checkpoint", command: toyCommand{fits: from(11, 64, 40)}, want: "64×1@0! 32×2@8(64)"},
		{name: "too large late, twice: a checkpoint knows who wrote it", command: toyCommand{fits: func(step int) int { return 64 >> (step / 7) }}, want: "64×1@0! 32×2@4(64)! 16×4@12(32)"},
		{name: "too large late, and no newer checkpoint: who wrote it is not forgotten", command: toyCommand{fits: from(11, 64, 20)}, want: "64×1@0! 32×2@8(64)! 16×4@8(64)"},
		{name: "it runs out where it had not before: once more, and on", policy: again,
			command: toyCommand{fits: from(11, 64, 40), resume: first(memory.PhaseForward, 2)}, want: "64×1@0! 32×2@8(64)!forward 32×2@8(64)"},
		{name: "it always does: smaller, for what the checkpoint leaves in memory", policy: again,
			command: toyCommand{fits: from(11, 64, 40), resume: first(memory.PhaseForward, 3)}, want: "64×1@0! 32×2@8(64)!forward 32×2@8(64)!forward 16×4@8(64)"},
		{name: "once more is not allowed: smaller at once",
			command: toyCommand{fits: from(11, 64, 40), resume: first(memory.PhaseForward, 2)}, want: "64×1@0! 32×2@8(64)!forward 16×4@8(64)"},
		{name: "the checkpoint cannot be loaded: once more, and no further", policy: again, code: 1,
			command: toyCommand{fits: from(11, 64, 40), resume: first(memory.PhaseLoad, 9)}, want: "64×1@0! 32×2@8(64)!load 32×2@8(64)!load"},
		{name: "others leave no room to load the model: wait", policy: recovery.Policy{Waits: 3},
			command: toyCommand{fits: always(64), ends: foreignLoad}, want: "64×1@0? wait 64×1@0"},
		{name: "others leave no room to load it: wait, and no smaller", policy: recovery.Policy{Waits: 3},
			command: toyCommand{fits: from(11, 64, 40), foreign: func(int) memory.Bytes { return 20 * memory.GiB }, resume: first(memory.PhaseLoad, 2)},
			want:    "64×1@0! 32×2@8(64)!load wait 32×2@8(64)"},
		{name: "it got as far as before: that is the plan's", policy: again,
			command: toyCommand{young: 300, fits: from(11, 64, 20)}, want: "64×1@0! 32×2@8(64)! 16×4@8(64)"},
		{name: "an evaluation is none of a step's business", policy: again, code: 1,
			command: toyCommand{fits: from(11, 64, 40), resume: first(memory.PhaseEval, 9)}, want: "64×1@0! 32×2@8(64)!eval"},
		{name: "memory of the host: its fallbacks, each once", policy: recovery.Policy{Host: []string{"no-pinning", "no-workers"}},
			command: toyCommand{young: 2, fits: always(64), ends: host(2)}, want: "64×1@0? 64×1@0+no-pinning? 64×1@0+no-pinning+no-workers"},
		{name: "memory of the host: none is left", policy: recovery.Policy{Host: []string{"no-pinning"}}, code: 3,
			command: toyCommand{fits: always(64), ends: host(9)}, want: "64×1@0? 64×1@0+no-pinning?"},
		{name: "one sample is too much, and recompute is allowed", plan: recovery.Plan{Effective: 2, World: 1, Micro: 2, Uniform: true},
			policy:  recovery.Policy{Recompute: true, Able: recovery.Able{Recompute: true}},
			command: toyCommand{fits: always(0)}, want: "2×1@0! 1×2@0! 1×2@0+recompute!", code: 1},
		{name: "it is not known to write checkpoints", command: toyCommand{fits: from(11, 64, 40)}, change: func(o *faked) { o.find = func() (*checkpoint, error) { return nil, nil } }, want: "64×1@0! 32×2@0"},
		{name: "one knob takes divisors", plan: recovery.Plan{Effective: 60, World: 1, Micro: 60, Uniform: true}, command: toyCommand{fits: always(16)}, want: "60×1@0! 30×2@0! 15×4@0"},
		{name: "one sample is too much", plan: recovery.Plan{Effective: 2, World: 1, Micro: 2, Uniform: true}, command: toyCommand{fits: always(0)}, want: "2×1@0! 1×2@0!", code: 1},
		{name: "not smaller than allowed", policy: recovery.Policy{MinMicro: 20}, command: toyCommand{fits: always(20)}, want: "64×1@0! 32×2@0!", code: 1},
		{name: "others hold the memory: smaller, then wait",
			plan:    recovery.Plan{Effective: 1, World: 1, Micro: 1, Uniform: true},
			policy:  recovery.Policy{Waits: 3},
			command: toyCommand{fits: func(int) int { return 0 }, foreign: func(int) memory.Bytes { return 20 * memory.GiB }},
			want:    "1×1@0! wait 1×1@0! wait 1×1@0! wait 1×1@0!", code: 1},
		{name: "not about memory: its own status, and no retry",
			command: toyCommand{fits: always(64), ends: func(int) *exits.Outcome { return &exits.Outcome{Kind: exits.Failed, Reasons: []string{"ValueError"}} }}, want: "64×1@0?", code: 3},
		{name: "nothing may be changed", command: toyCommand{fits: always(20)}, change: func(o *faked) { o.recovers = false }, want: "64×1@0!", code: 1},
		{name: "it cannot resume: it starts over", command: toyCommand{fits: from(11, 64, 40)}, change: func(o *faked) { o.resumes = false }, want: "64×1@0! 32×2@0"},
		{name: "no smaller batch will help", command: toyCommand{fits: always(64), ends: func(int) *exits.Outcome {
			return &exits.Outcome{Kind: exits.OutOfMemory, Confidence: exits.Certain, Evidence: &memory.Evidence{}, Hopeless: "the request is larger than the device"}
		}}, want: "64×1@0?", code: 3},
		{name: "possible is not enough to change anything", command: toyCommand{fits: always(64), ends: func(int) *exits.Outcome {
			return &exits.Outcome{Kind: exits.OutOfMemory, Confidence: exits.Possible, Evidence: &memory.Evidence{}}
		}}, want: "64×1@0?", code: 3},
		{name: "a device that is gone: again, three times",
			command: toyCommand{fits: always(64), ends: func(int) *exits.Outcome { return &exits.Outcome{Kind: exits.DeviceGone} }}, want: "64×1@0? 64×1@0? 64×1@0? 64×1@0?", code: 3},
		{name: "the same, and it dies young", command: toyCommand{young: 2, fits: always(64), ends: func(int) *exits.Outcome { return &exits.Outcome{Kind: exits.DeviceGone} }},
			want: "64×1@0? wait 64×1@0? wait 64×1@0? wait 64×1@0?", code: 3},
		{name: "a smaller plan is tried at once, however young the last one died", command: toyCommand{young: 2, fits: always(20), ends: nil}, want: "64×1@0! 32×2@0! 16×4@0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.command.steps, c.command.every = 20, 4
			if c.command.young == 0 {
				c.command.young = 60
			}
			if c.plan.Effective == 0 {
				c.plan = plan
			}
			got, code, err := wrapped(t, &c.command, c.plan, c.policy, c.change)
			if got != c.want || code != c.code || (err != nil) != (c.code != 0) {
				t.Errorf("got  %s, status %d, %v\nwant %s, status %d", got, code, err, c.want, c.code)
			}
			for step, samples := range c.command.made {
				if samples != c.plan.Effective {
					t.Errorf("step %d took %d samples, want %d", step, samples, c.plan.Effective)
				}
			}
		})
	}
}

// TestRunInEvaluation checks what Run does if memory runs out outside the training steps.
// Run makes the evaluation batch smaller if that can be set, and never changes the
// micro-batch. If a smaller evaluation batch is impossible or would not help, Run ends
// with the command's own status.
func TestRunInEvaluation(t *testing.T) {
	for _, c := range []struct {
		name  string
		phase memory.Phase
		fits  int // samples of an evaluation batch
		asked int
		able  bool
		want  string
		code  int
	}{
		{"half, and half again", memory.PhaseEval, 20, 64, true, "64×1@0 eval 64! 64×1@4(64) eval 32! 64×1@4(64) eval 16", 0},
		{"one sample is too much", memory.PhaseEval, 0, 2, true, "64×1@0 eval 2! 64×1@4(64) eval 1!", 3},
		{"no knob", memory.PhaseEval, 20, 0, false, "64×1@0 eval 0!", 3},
		{"generation for training", memory.PhaseGenerate, 20, 64, true, "64×1@0 eval 64!", 3},
		{"saving", memory.PhaseCheckpoint, 20, 64, true, "64×1@0 eval 64!", 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			line := &toyCommand{steps: 20, every: 4, young: 60, fits: func(int) int { return 64 }}
			plan := recovery.Plan{Effective: 64, World: 1, Micro: 64, Uniform: true, Eval: c.asked}
			trace, code, err := wrapped(t, line, plan, recovery.Policy{Able: recovery.Able{Eval: c.able}}, func(o *faked) {
				o.try = func(ctx context.Context, b beginning) (exits.Outcome, command.Exit, error) {
					step := line.steps
					if line.steps = 4; b.Plan.Eval <= c.fits && c.able {
						line.steps = step
					}
					out, exit, err := line.attempt(ctx, b)
					last := &line.trace[len(line.trace)-1]
					*last += fmt.Sprintf(" eval %d", b.Plan.Eval)
					if line.steps == step {
						return out, exit, err
					}
					*last, line.steps = *last+"!", step
					out = line.ranOut()
					out.Evidence.Failure.Phase, out.Hopeless = c.phase, exits.OtherKnobs[c.phase]
					return out, command.Exit{Code: 3, Seconds: 60}, err
				}
			})
			if trace != c.want || code != c.code || (err != nil) != (c.code != 0) {
				t.Errorf("got  %s, status %d, %v\nwant %s, status %d", trace, code, err, c.want, c.code)
			}
			if exit := (*ExitError)(nil); c.code != 0 && (!errors.As(err, &exit) || exit.Hint != exits.OtherKnobs[c.phase]) {
				t.Errorf("%#v", err)
			}
		})
	}
}

// TestRunWithoutGradients checks what Run does about a failure in a call without gradients, of
// which no frame says that it is an evaluation: first the evaluation batch becomes smaller, if it
// can be set, and then the micro-batch.
func TestRunWithoutGradients(t *testing.T) {
	for _, c := range []struct {
		name      string
		eval      int
		fitsEval  int
		fitsMicro int
		want      string
	}{
		{"an evaluation", 64, 20, 64, "64×1@0! 64×1@4(64)! 64×1@4(64)"},
		{"a teacher", 4, 0, 32, "64×1@0! 64×1@4(64)! 64×1@4(64)! 32×2@4(64)"},
		{"no knob", 0, 0, 32, "64×1@0! 32×2@4(64)"},
	} {
		line := &toyCommand{steps: 20, every: 4, young: 60}
		plan := recovery.Plan{Effective: 64, World: 1, Micro: 64, Uniform: true, Eval: c.eval}
		trace, code, err := wrapped(t, line, plan, recovery.Policy{Able: recovery.Able{Eval: c.eval > 0}}, func(o *faked) {
			o.try = func(ctx context.Context, b beginning) (exits.Outcome, command.Exit, error) {
				line.fits = func(step int) int {
					if step > 4 && (b.Plan.Largest() > c.fitsMicro || c.fitsEval > 0 && b.Plan.Eval > c.fitsEval) {
						return 0
					}
					return 64
				}
				out, exit, err := line.attempt(ctx, b)
				if out.Kind == exits.OutOfMemory {
					seen := out.Evidence.Failure
					seen.Phase = memory.PhaseEval
					out = out.FromInside(memory.Evidence{Failure: seen}, "")
				}
				return out, exit, err
			}
		})
		if trace != c.want || code != 0 || err != nil {
			t.Errorf("%s: got %s, status %d, %v; want %s", c.name, trace, code, err, c.want)
		}
	}
}

// TestRunIsStopped checks that nothing is started again after the user has asked to stop,
// however the command ended.
func TestRunIsStopped(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	c := &toyCommand{steps: 20, every: 4, fits: func(int) int { return 8 }}
	_, code, err := wrappedIn(ctx, t, c, recovery.Plan{Effective: 64, World: 1, Micro: 64, Uniform: true}, recovery.Policy{}, func(o *faked) {
		o.try = func(_ context.Context, b beginning) (exits.Outcome, command.Exit, error) {
			stop()
			return c.attempt(ctx, b)
		}
	})
	if !errors.Is(err, harness.ErrInterrupted) || code != 1 || c.attempts != 1 {
		t.Errorf("%v, status %d, after %d attempts", err, code, c.attempts)
	}
}

// TestRunEndsAs checks with which error a run ends, and after how many attempts.
func TestRunEndsAs(t *testing.T) {
	const gib = memory.GiB
	ranOut := func(k exits.Kind, c exits.Confidence, phase memory.Phase, requested memory.Bytes) exits.Outcome {
		return exits.Outcome{Kind: k, Confidence: c, Hint: "a hint", Evidence: &memory.Evidence{Failure: memory.OutOfMemoryError{
			Requested: requested, Phase: phase, Stats: memory.Stats{Capacity: 24 * gib, Reserved: 23 * gib, Allocated: 22 * gib}}}}
	}
	disk := errors.New("input/output error")
	broken := func(context.Context, time.Duration) error { return disk }
	gaveUp := func(err error) bool { return errors.As(err, new(*harness.GaveUpError)) }
	ended := func(memory bool, hint string) func(error) bool {
		return func(err error) bool {
			var exit *ExitError
			return errors.As(err, &exit) && exit.Code == 3 && exit.Memory == memory && strings.Contains(exit.Hint, hint) && (hint != "") == (exit.Hint != "")
		}
	}
	for _, c := range []struct {
		name     string
		o        exits.Outcome
		young    bool
		change   func(*faked)
		attempts int
		want     func(error) bool
	}{
		{"it was stopped", exits.Outcome{Kind: exits.Stopped}, false, nil, 1, func(err error) bool { return errors.Is(err, harness.ErrInterrupted) }},
		{"possibly memory", ranOut(exits.OutOfMemory, exits.Possible, memory.PhaseForward, gib), false, nil, 1, ended(true, "a hint")},
		{"another reason", exits.Outcome{Kind: exits.Failed}, false, nil, 1, ended(false, "")},
		{"hopeless at its micro-batch", ranOut(exits.OutOfMemory, exits.Certain, memory.PhaseForward, 100*64*gib), false, nil, 1, ended(true, "even one sample would need")},
		{"memory of the host", ranOut(exits.OutOfHostMemory, exits.Certain, memory.PhaseForward, gib), false, nil, 1, gaveUp},
		{"memory of the host while loading", ranOut(exits.OutOfHostMemory, exits.Certain, memory.PhaseLoad, gib), false, nil, 1, gaveUp},
		{"while loading", ranOut(exits.OutOfMemory, exits.Certain, memory.PhaseLoad, gib), false, nil, 1, gaveUp},
		{"a device gone, of a command that must not be started again", exits.Outcome{Kind: exits.DeviceGone}, false, func(o *faked) { o.recovers = false }, 1, ended(false, "")},
		{"checkpoints cannot be looked for", exits.Outcome{Kind: exits.DeviceGone}, false, func(o *faked) {
			o.find = func() (*checkpoint, error) { return nil, disk }
		}, 0, func(err error) bool { return errors.Is(err, disk) }},
		{"nor after an attempt", exits.Outcome{Kind: exits.DeviceGone}, false, func(o *faked) {
			looked := 0
			o.find = func() (*checkpoint, error) {
				if looked++; looked == 1 {
					return nil, nil
				}
				return nil, disk
			}
		}, 1, func(err error) bool { return errors.Is(err, disk) }},
		{"it cannot pause", exits.Outcome{Kind: exits.DeviceGone}, true, func(o *faked) { o.sleep = broken }, 1, func(err error) bool { return errors.Is(err, disk) }},
	} {
		command := &toyCommand{steps: 20, every: 4, young: 60, ends: func(int) *exits.Outcome { return &c.o }}
		if c.young {
			command.young = 2
		}
		_, code, err := wrapped(t, command, recovery.Plan{Effective: 64, World: 1, Micro: 64, Uniform: true}, recovery.Policy{}, c.change)
		if !c.want(err) || command.attempts != c.attempts || code != 3*min(1, c.attempts) {
			t.Errorf("%s: %#v, status %d, after %d attempts, want %d", c.name, err, code, command.attempts, c.attempts)
		}
	}
}

// TestRunProgresses checks that a new checkpoint resets the limit on how often in a row a
// device may be lost.
func TestRunProgresses(t *testing.T) {
	c := &toyCommand{steps: 20, every: 4, young: 60, fits: func(int) int { return 64 }}
	c.ends = func(attempt int) *exits.Outcome {
		if attempt > 9 {
			return nil
		}
		c.saved = checkpoint{Path: fmt.Sprintf("step-%d", attempt), Step: attempt}
		return &exits.Outcome{Kind: exits.DeviceGone}
	}
	if trace, code, err := wrapped(t, c, recovery.Plan{Effective: 64, World: 1, Micro: 64, Uniform: true}, recovery.Policy{}, nil); err != nil || code != 0 || c.attempts != 10 {
		t.Errorf("%s, status %d, %v", trace, code, err)
	}
}

// TestRunOverwritesItsCheckpoint checks that a checkpoint with the same name counts as
// progress if it was written later, and that its Micro is the micro-batch of the attempt
// that wrote it.
func TestRunOverwritesItsCheckpoint(t *testing.T) {
	c := &toyCommand{steps: 20, every: 4, young: 60, fits: func(int) int { return 64 }}
	plan := recovery.Plan{Effective: 64, World: 1, Micro: 64, Uniform: true}
	micros := ""
	_, code, err := wrapped(t, c, plan, recovery.Policy{}, func(o *faked) {
		o.try = func(_ context.Context, b beginning) (exits.Outcome, command.Exit, error) {
			if c.attempts++; b.From != nil {
				micros += fmt.Sprint(b.From.Micro, " ")
			}
			if c.attempts <= 9 {
				c.saved = checkpoint{Path: "ckpt.pt", Time: time.Unix(int64(c.attempts), 0)}
			}
			switch {
			case c.attempts == 3:
				return c.ranOut(), command.Exit{Code: 1, Seconds: 60}, nil
			case c.attempts <= 12:
				return exits.Outcome{Kind: exits.DeviceGone}, command.Exit{Code: 3, Seconds: 60}, nil
			}
			return exits.Outcome{Kind: exits.Done}, command.Exit{}, nil
		}
	})
	if err == nil || code != 3 || c.attempts != 12 || micros != "64 64 64 32 32 32 32 32 32 32 32 " {
		t.Errorf("status %d, %v, after %d attempts, from checkpoints of %s", code, err, c.attempts, micros)
	}
}

// TestRunStopsWaiting checks that a wait for other processes can be interrupted.
func TestRunStopsWaiting(t *testing.T) {
	stopped := errors.New("stopped")
	c := &toyCommand{steps: 20, every: 4, young: 60, fits: func(int) int { return 0 }, foreign: func(int) memory.Bytes { return 20 * memory.GiB }}
	_, _, err := wrapped(t, c, recovery.Plan{Effective: 1, World: 1, Micro: 1, Uniform: true}, recovery.Policy{Waits: 3}, func(o *faked) {
		o.sleep = func(context.Context, time.Duration) error { return stopped }
	})
	if !errors.Is(err, stopped) || c.attempts != 1 {
		t.Errorf("%v after %d attempts", err, c.attempts)
	}
}

// TestRunStartFails checks that if a command cannot be started, the run ends and returns the error
// from starting it.
func TestRunStartFails(t *testing.T) {
	broken := errors.New("exec: python: not found")
	c := &toyCommand{fits: func(int) int { return 64 }}
	_, _, err := wrapped(t, c, recovery.Plan{Effective: 4, World: 1, Micro: 4}, recovery.Policy{}, func(o *faked) {
		o.try = func(context.Context, beginning) (exits.Outcome, command.Exit, error) {
			return exits.Outcome{}, command.Exit{}, broken
		}
	})
	if !errors.Is(err, broken) {
		t.Error(err)
	}
}

// TestResuming checks when a failure is attributed to resuming from a checkpoint, and not
// to the plan.
func TestResuming(t *testing.T) {
	const minute = time.Minute
	eight := &checkpoint{Step: 8, Micro: 32}
	for _, c := range []struct {
		name         string
		from, newest *checkpoint
		phase        memory.Phase
		lived        time.Duration
		want         bool
	}{
		{"from the beginning", nil, nil, memory.PhaseForward, minute, false},
		{"while loading", eight, eight, memory.PhaseLoad, 9 * minute, true},
		{"sooner than before", eight, eight, memory.PhaseBackward, minute, true},
		{"as late as before", eight, eight, memory.PhaseBackward, 3 * minute, false},
		{"sooner by no more than clocks and disks differ", eight, eight, memory.PhaseBackward, 2*minute - checkpoints.Settled/2, false},
		{"in an evaluation", eight, eight, memory.PhaseEval, minute, false},
		{"in loading the best model, at the end", eight, &checkpoint{Step: 12, Micro: 32}, memory.PhaseLoad, minute, false},
		{"with a larger micro-batch than wrote it", &checkpoint{Step: 8, Micro: 16}, eight, memory.PhaseLoad, minute, false},
		{"written nobody knows how", &checkpoint{Step: 8}, eight, memory.PhaseLoad, minute, false},
	} {
		_, s := attempted(t, "run", recovery.Plan{Effective: 64, World: 1, Micro: 32})
		r := &runner{s: s, from: c.from, saved: c.newest, beyond: 2 * minute}
		if got := r.resuming(c.phase, c.lived); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// TestOlderCheckpoint checks that a command which fails before its first step after it has
// resumed is started again from the checkpoint before, a few times at most, and that the
// checkpoints are blamed only once it has made a step from another one.
func TestOlderCheckpoint(t *testing.T) {
	plan := recovery.Plan{Effective: 64, World: 1, Micro: 64, Uniform: true}
	made := func(n int) func(o *faked) { return func(o *faked) { o.steps = func() int { return n } } }
	for _, c := range []struct {
		name       string
		unloadable []string
		change     func(o *faked)
		want       string
		judged     string
	}{
		{"the newest cannot be loaded", []string{"step-12"}, nil, "64×1@0! 32×2@12(64)? wait 32×2@8(64)", "1 true "},
		{"nor can the one before", []string{"step-12", "step-8"}, nil, "64×1@0! 32×2@12(64)? wait 32×2@8(64)? wait 32×2@4(64)", "2 true "},
		{"both fail alike: then it is not the checkpoints", []string{"step-12", "step-8"}, nil, "64×1@0! 32×2@12(64)? wait 32×2@8(64)?", ""},
		{"none can: that may not be the checkpoints' fault", []string{"step-12", "step-8", "step-4"}, nil, "64×1@0! 32×2@12(64)? wait 32×2@8(64)? wait 32×2@4(64)?", ""},
		{"it had made a step", []string{"step-12"}, made(1), "64×1@0! 32×2@12(64)?", ""},
		{"it was seen to make no step", []string{"step-12"}, made(0), "64×1@0! 32×2@12(64)? wait 32×2@8(64)", "1 true "},
		{"it lived for long, and may have made steps", []string{"step-12"}, func(o *faked) { o.steps = func() int { return -1 } }, "64×1@0! 32×2@12(64)?", ""},
		{"nothing may be changed", []string{"step-12"}, func(o *faked) { o.chooses = false }, "64×1@0! 32×2@12(64)?", ""},
	} {
		toy := &toyCommand{steps: 20, every: 4, young: 2, unloadable: c.unloadable, fits: func(step int) int { return 64 >> (step / 14) }}
		if toy.differ = 1; strings.HasPrefix(c.name, "both") {
			toy.differ = 0
		}
		if strings.HasPrefix(c.name, "it lived") {
			toy.young = 60
		}
		got, code, err := wrapped(t, toy, plan, recovery.Policy{}, func(o *faked) {
			o.chooses = true
			if c.change != nil {
				c.change(o)
			}
		})
		if got != c.want || toy.judged != c.judged || (err == nil) != (c.judged != "") || (code == 0) != (err == nil) {
			t.Errorf("%s: %s, judged %q, status %d, %v; want %s, judged %q", c.name, got, toy.judged, code, err, c.want, c.judged)
		}
	}
}

// TestPerhapsAnotherRuns checks that a checkpoint which may be another run's does not count as this run's
// progress.
func TestPerhapsAnotherRuns(t *testing.T) {
	plan := recovery.Plan{Effective: 64, World: 1, Micro: 64, Uniform: true}
	for perhaps, want := range map[bool]string{false: "64×1@0! 32×2@12(64)", true: "64×1@0! 32×2@12(0)"} {
		toy := &toyCommand{steps: 20, every: 4, fits: func(step int) int { return 64 >> (step / 14) }}
		got, _, err := wrapped(t, toy, plan, recovery.Policy{}, func(o *faked) {
			newest := o.find
			o.find = func() (*checkpoint, error) {
				s, err := newest()
				if s != nil {
					s.Perhaps = perhaps
				}
				return s, err
			}
		})
		if err != nil || got != want {
			t.Errorf("perhaps %v: %s, %v; want %s", perhaps, got, err, want)
		}
	}
}

// TestClearBetweenAttempts checks that Run clears the way before each attempt after the first, and
// before it waits for memory, and asks once, in the end, what is left running.
func TestClearBetweenAttempts(t *testing.T) {
	foreign := func(attempt int) memory.Bytes {
		if attempt < 3 {
			return 20 * memory.GiB
		}
		return 0
	}
	c := &toyCommand{steps: 20, every: 4, foreign: foreign}
	c.fits = func(int) int {
		if c.attempts < 3 {
			return 0
		}
		return 64
	}
	plan := recovery.Plan{Effective: 1, World: 1, Micro: 1, Uniform: true}
	trace, code, err := wrapped(t, c, plan, recovery.Policy{Relaunches: 3, Waits: 3}, func(o *faked) {
		o.clears = func(context.Context) string { c.trace = append(c.trace, "clear"); return "" }
		o.left = func() string {
			c.trace = append(c.trace, "left")
			return "the command left a process running: a (pid 1)"
		}
		o.sleep = func(_ context.Context, d time.Duration) error {
			if d == waitBetween {
				c.trace = append(c.trace, "wait")
			}
			return nil
		}
	})
	if want := "1×1@0! clear wait 1×1@0! clear wait 1×1@0 left"; trace != want || code != 0 || err != nil {
		t.Errorf("%s, %d, %v; want %s", strings.TrimSpace(trace), code, err, want)
	}
}
