package harness

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"headroom/memory"
	"headroom/runs"
)

func TestInterrupt(t *testing.T) {
	for _, test := range []struct {
		name  string
		steps int // finished when the run ends
		arm   func(j *journey, interrupt func())
	}{
		{"in a step, which is finished", 3, func(j *journey, interrupt func()) {
			j.lab.before = func(_ *lab, step int) {
				if step == 3 {
					interrupt()
				}
			}
		}},
		{"before the first step", 0, func(_ *journey, interrupt func()) { interrupt() }},
		{"while searching", 0, func(j *journey, interrupt func()) {
			j.options.Plan.Micro = 0
			probes := 0
			j.options.OnEntry = func(e runs.Entry) {
				j.entries = append(j.entries, e)
				if e.Kind != runs.KindProbe {
					return
				}
				if probes++; probes > 1 && j.options.Interrupt != nil {
					j.t.Error("a probe after the interrupt")
				}
				interrupt()
			}
		}},
		{"while waiting", 2, func(j *journey, interrupt func()) {
			j.options.Policy.MinMicro = 16
			held := memory.Bytes(0)
			j.lab.foreign = func(int) memory.Bytes { return held }
			j.lab.before = func(_ *lab, step int) {
				if step == 3 {
					held = 15 * memory.GiB
				}
			}
			j.options.Sleep = func(ctx context.Context, _ time.Duration) error {
				interrupt()
				<-ctx.Done() // the run ends the sleep
				held, j.lab.before = 0, nil
				return ctx.Err()
			}
		}},
		{"in a step that never fits", 2, func(j *journey, interrupt func()) {
			j.lab.before = func(l *lab, step int) {
				if step == 3 {
					l.allocFails = func(int) bool { interrupt(); return true }
				}
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			j := newJourney(t, plan64.WithMicro(16), 6)
			interrupted := make(chan struct{})
			done := false
			test.arm(j, func() {
				if !done {
					done = true
					close(interrupted)
				}
			})
			j.options.Interrupt = interrupted
			result, err := j.run(context.Background())
			if !errors.Is(err, ErrInterrupted) || result.Finished || result.Steps != test.steps {
				t.Fatalf("%+v, %v", result, err)
			}
			if !strings.HasSuffix(j.kinds(), "checkpoint, interrupted") {
				t.Errorf("entries %s", j.kinds())
			}
			if tries := strings.Count(strings.Join(j.lab.trace, " "), "!"); tries > 2 || strings.Contains(test.name, "never fits") && tries != 1 {
				t.Errorf("%d failed tries: %v", tries, j.lab.trace)
			}
			if s, err := runs.ReadStatus(j.dir); err != nil || s.State != runs.StateInterrupted || s.Step != test.steps {
				t.Errorf("status %+v, %v", s, err)
			}
			j.options.Interrupt = nil
			j.lab.before, j.lab.allocFails = nil, nil
			if result := j.mustRun(); result.Resumed != test.steps || result.Steps != 6 {
				t.Errorf("resumed: %+v", result)
			}
			j.account(6)
		})
	}
}

func TestInterruptOfTheLastStepIsDone(t *testing.T) {
	j := newJourney(t, plan64.WithMicro(16), 3)
	interrupted := make(chan struct{})
	j.options.Interrupt = interrupted
	j.lab.before = func(_ *lab, step int) {
		if step == 3 {
			close(interrupted)
		}
	}
	if result := j.mustRun(); !result.Finished {
		t.Errorf("%+v", result)
	}
}

func TestCancelEndsWithoutACheckpoint(t *testing.T) {
	for _, when := range []string{"step", "wait", "search", "open"} {
		t.Run(when, func(t *testing.T) {
			j := newJourney(t, plan64.WithMicro(16), 6)
			j.options.CheckpointEvery = 2
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			finished := 3
			switch when {
			case "step":
				j.lab.before = func(_ *lab, step int) {
					if step == 4 {
						cancel()
					}
				}
			case "wait":
				j.options.Policy.MinMicro = 16
				j.lab.foreign = func(step int) memory.Bytes { return memory.Bytes(step/4) * 15 * memory.GiB }
				j.options.Sleep = func(ctx context.Context, _ time.Duration) error {
					cancel()
					return ctx.Err()
				}
			case "search":
				j.options.Plan.Micro, finished = 0, 0
				j.options.OnEntry = func(e runs.Entry) {
					if e.Kind == runs.KindProbe {
						cancel()
					}
				}
			case "open":
				finished = 0
				j.options.Open = func(ctx context.Context) (Trainer, error) {
					cancel()
					return nil, ctx.Err()
				}
			}
			result, err := j.run(ctx)
			if !errors.Is(err, context.Canceled) || result.Steps != finished || result.Finished {
				t.Fatalf("%+v, %v", result, err)
			}
			if s, err := runs.ReadStatus(j.dir); err != nil || s.State != runs.StateInterrupted {
				t.Errorf("status %+v, %v", s, err)
			}
			j.options.Open, j.lab.before, j.lab.foreign = j.lab.Open, nil, nil
			if result := j.mustRun(); result.Resumed != finished/2*2 {
				t.Errorf("resumed: %+v", result)
			}
			j.account(6)
		})
	}
}
