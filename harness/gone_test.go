package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	"headroom/memory"
	"headroom/recovery"
	"headroom/runs"
)

var errGone = errors.New("the device is gone")

// mortal is a trainer whose device is lost in the nth call to one of its methods. From
// then on, every use of the device fails.
type mortal struct {
	Trainer
	call string
	nth  int
	dead bool
	used bool // a method was called after the loss
}

func (m *mortal) fails(call string) error {
	m.used = m.used || m.dead
	if call == m.call {
		m.nth--
		m.dead = m.dead || m.nth == 0
	}
	if m.dead {
		return fmt.Errorf("%s: %w", call, errGone)
	}
	return nil
}

func (m *mortal) Step(ctx context.Context, p recovery.Plan) (runs.StepReport, error) {
	if err := m.fails("step"); err != nil {
		// An out-of-memory failure that comes with the loss must not start a recovery.
		return runs.StepReport{}, errors.Join(err, &memory.OutOfMemoryError{Requested: 1})
	}
	return m.Trainer.Step(ctx, p)
}

func (m *mortal) Probe(ctx context.Context, n int) (memory.Stats, error) {
	if err := m.fails("probe"); err != nil {
		return memory.Stats{}, errors.Join(err, &memory.OutOfMemoryError{Requested: 1}) // as in Step
	}
	return m.Trainer.Probe(ctx, n)
}

func (m *mortal) EmptyCache() (memory.Bytes, error) {
	if err := m.fails("empty"); err != nil {
		return 0, err
	}
	return m.Trainer.EmptyCache()
}

func (m *mortal) Save(w io.Writer) error {
	return errors.Join(m.fails("save"), m.Trainer.Save(w))
}

func (m *mortal) Load(r io.Reader) error {
	return errors.Join(m.fails("load"), m.Trainer.Load(r))
}

// doomed makes the given number of processes of j lose their device, each in the nth call
// to the given method. last points to the trainer of the newest of these processes.
func doomed(j *journey, processes int, call string, nth int) (last **mortal) {
	last = new(*mortal)
	j.options.Gone = func(err error) bool { return errors.Is(err, errGone) }
	j.options.Open = func(ctx context.Context) (Trainer, error) {
		if processes--; processes < 0 {
			return j.lab.Open(ctx)
		}
		if call == "open" {
			return nil, errors.Join(errGone, &memory.OutOfMemoryError{Requested: 1})
		}
		t, err := j.lab.Open(ctx)
		*last = &mortal{Trainer: t, call: call, nth: nth}
		return *last, err
	}
	return last
}

// TestLostDevice loses the device in every kind of call. The process must end without using
// the device again, and the next process must run the remaining steps.
func TestLostDevice(t *testing.T) {
	for _, c := range []struct {
		call  string
		nth   int
		saved int // step of the newest checkpoint when the device is lost
	}{
		{"open", 1, 0}, {"empty", 1, 0}, {"probe", 2, 0}, {"step", 1, 0}, {"step", 5, 4}, {"save", 1, 0}, {"save", 2, 2}, {"save", 4, 6},
	} {
		t.Run(fmt.Sprint(c.call, c.nth), func(t *testing.T) {
			j := newJourney(t, plan64.WithMicro(0), 7)
			j.options.CheckpointEvery = 2
			trainer := doomed(j, 1, c.call, c.nth)
			_, err := j.run(t.Context())
			var lost *DeviceGoneError
			if !errors.As(err, &lost) || lost.Decision.Remedy != recovery.Exec || !errors.Is(err, errGone) {
				t.Fatalf("%T %v", err, err)
			}
			if want := fmt.Sprintf("continue in a new process from step %d (restart 1 of 3 without a new checkpoint): ", c.saved); !strings.HasPrefix(err.Error(), want) {
				t.Errorf("reason %q, want %q", err, want)
			}
			if c.call != "open" && (*trainer).used {
				t.Error("the dead device was asked again")
			}
			if s, err := runs.ReadStatus(j.dir); err != nil || s.State != runs.StateStale || s.DeviceGone != 1 { // the file says running, but its process is gone
				t.Errorf("status %v with %d losses, %v", s.State, s.DeviceGone, err)
			}
			if kinds := j.kinds(); !strings.HasSuffix(kinds, "gone, decision") || strings.Contains(kinds, "failed") || strings.Contains(kinds, "oom") {
				t.Errorf("the journal tells: %s", kinds)
			}
			result := j.mustRun()
			if !result.Finished || result.DeviceGone != 1 || result.Resumed != c.saved {
				t.Errorf("result %+v", result)
			}
			if last := j.entries[len(j.entries)-1]; last.Text != "done: 7 steps, device lost 1×" {
				t.Errorf("the last word is %q", last.Text)
			}
			j.account(7)
		})
	}
}

func TestLostWhileLoading(t *testing.T) {
	j := newJourney(t, plan64.WithMicro(32), 4)
	j.options.Steps = 2
	j.mustRun()
	j.options.Steps = 4
	doomed(j, 1, "load", 1)
	var lost *DeviceGoneError
	if _, err := j.run(t.Context()); !errors.As(err, &lost) || lost.Decision.Remedy != recovery.Exec {
		t.Fatal(err)
	}
	j.mustRun()
	j.account(4)
}

// TestLostAgainAndAgain checks that losses without a new checkpoint are counted
// across processes, and that a checkpoint or a new start by the user resets the
// count.
func TestLostAgainAndAgain(t *testing.T) {
	for _, c := range []struct {
		name  string
		every int
		nth   int
		want  string // the outcome of every process
	}{
		{"no progress", 0, 2, "exec exec exec stop exec exec exec stop exec"},
		{"a checkpoint each", 1, 2, "exec exec exec exec exec exec done done done"},
		{"before the step", 1, 1, "exec exec exec stop exec exec exec stop exec"},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := newJourney(t, plan64.WithMicro(32), 7)
			j.options.CheckpointEvery = c.every
			doomed(j, 1000, "step", c.nth)
			var outcomes []string
			for range 9 {
				_, err := j.run(t.Context())
				var lost *DeviceGoneError
				switch {
				case err == nil:
					outcomes = append(outcomes, "done")
				case errors.As(err, &lost):
					outcomes = append(outcomes, string(lost.Decision.Remedy))
				default:
					t.Fatal(err)
				}
			}
			if got := strings.Join(outcomes, " "); got != c.want {
				t.Errorf("\n got %s\nwant %s", got, c.want)
			}
		})
	}
}

// TestLostAndInterrupted asks for a stop before the device is lost (in a step or in the
// last checkpoint), or afterwards, while the run waits for the driver to report the fault.
func TestLostAndInterrupted(t *testing.T) {
	for _, c := range []struct {
		name, call  string
		nth, before int // before: the step before which the interrupt comes; 0 if it comes while waiting
	}{{"in the step", "step", 3, 3}, {"in the last checkpoint", "save", 2, 4}, {"while waiting for faults", "step", 3, 0}} {
		t.Run(c.name, func(t *testing.T) {
			interrupt := make(chan struct{})
			j := newJourney(t, plan64.WithMicro(32), 7)
			j.options.CheckpointEvery = 2
			doomed(j, 1, c.call, c.nth)
			j.options.Interrupt = interrupt
			j.options.BeforeStep = func(finished int) {
				if finished == c.before-1 {
					close(interrupt)
				}
			}
			j.options.Observe = func(context.Context) Observer { return &lookout{read: func() *runs.Reading { return nil }} }
			j.options.Sleep = func(context.Context, time.Duration) error {
				if c.before == 0 {
					close(interrupt)
				}
				return nil
			}
			_, err := j.run(t.Context())
			var lost *DeviceGoneError
			if !errors.Is(err, ErrInterrupted) || !errors.As(err, &lost) || lost.Decision.Remedy != recovery.Stop ||
				lost.Decision.Hint != "the same command continues from step 2" || strings.Contains(err.Error(), "make room") {
				t.Fatalf("%T %v", err, err)
			}
			if kinds := j.kinds(); !strings.HasSuffix(kinds, "gone, interrupted") || strings.Contains(j.entries[len(j.entries)-1].Text, ", checkpoint written") {
				t.Errorf("the journal tells: %s", kinds)
			}
			if s, err := runs.ReadStatus(j.dir); err != nil || s.State != runs.StateInterrupted || s.DeviceGone != 1 {
				t.Errorf("status %v with %d losses, %v", s.State, s.DeviceGone, err)
			}
		})
	}
}

// TestLossesAreTheCallersToName checks that, without RunOptions.Gone, no error counts as
// the loss of the device.
func TestLossesAreTheCallersToName(t *testing.T) {
	j := newJourney(t, plan64.WithMicro(32), 3)
	doomed(j, 1, "load", 1)
	j.options.Gone = nil
	j.lab.twist = func(*runs.StepReport) error { return errGone }
	_, err := j.run(t.Context())
	var lost *DeviceGoneError
	if !errors.Is(err, errGone) || errors.As(err, &lost) {
		t.Errorf("%T %v", err, err)
	}
}

func TestLostWithAFullDisk(t *testing.T) {
	j := newJourney(t, plan64.WithMicro(32), 7)
	doomed(j, 1, "step", 3)
	full := false
	j.options.BeforeStep = func(finished int) { full = finished == 2 }
	disk := &faulty{Disk: fast{}, fail: func(_ int, op string) error {
		if full && op == "write journal.jsonl" {
			return syscall.ENOSPC
		}
		return nil
	}}
	_, err := j.runOn(t.Context(), disk)
	var lost *DeviceGoneError
	if !errors.As(err, &lost) || lost.Decision.Remedy != recovery.Stop || !strings.Contains(lost.Decision.Hint, "make room") {
		t.Errorf("%T %v", err, err)
	}
}

func TestOnLine(t *testing.T) {
	gone := errors.Join(fmt.Errorf("step 3: %w", errGone), errGone, errors.New("\nfree: no"))
	if got, want := onLine(gone), "step 3: the device is gone; free: no"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// lookout is an observer that reports what a test specifies.
type lookout struct {
	late  int // number of calls of Faults that return nothing at first
	fault []runs.Fault
	read  func() *runs.Reading
	ended context.Context
}

func (l *lookout) Read() *runs.Reading { return l.read() }

func (l *lookout) Faults() []runs.Fault {
	if l.late--; l.late >= 0 {
		return nil
	}
	faults := l.fault
	l.fault = nil
	return faults
}

func TestWatchedRun(t *testing.T) {
	j := newJourney(t, plan64.WithMicro(32), 10)
	clock := time.Unix(1e9, 0)
	j.options.Now = func() time.Time { return clock }
	j.options.OnStep = func(runs.StepReport) { clock = clock.Add(11 * time.Second) }
	hot := 60
	eye := &lookout{fault: []runs.Fault{{Time: clock, Code: 92, Text: "Xid 92"}}}
	eye.read = func() *runs.Reading {
		if hot++; hot == 62 {
			return nil // nothing is known this time
		}
		now := hot
		return &runs.Reading{Temperature: &now}
	}
	j.options.Observe = func(ctx context.Context) Observer {
		eye.ended = ctx
		return eye
	}
	j.mustRun()
	var told []string
	for _, e := range j.entries {
		if e.Kind == runs.KindDevice || e.Kind == runs.KindFault {
			told = append(told, fmt.Sprintf("%d %s", e.Step, e.Text))
		}
		if e.Kind == runs.KindDevice && e.Device == nil || e.Kind == runs.KindFault && (e.Fault == nil || e.Fault.Code != 92) {
			t.Errorf("%+v", e)
		}
	}
	// A step takes 11 s.
	if got, want := strings.Join(told, ", "), "1 Xid 92, 3 61 °C, 9 63 °C, 10 64 °C"; got != want {
		t.Errorf("told %q, want %q", got, want)
	}
	if eye.ended.Err() == nil {
		t.Error("the observer continues after the run")
	}
}

// TestLossNamesFaults checks that the error names faults that the driver reports only after
// a while.
func TestLossNamesFaults(t *testing.T) {
	j := newJourney(t, plan64.WithMicro(32), 10)
	doomed(j, 1, "step", 1)
	eye := &lookout{late: 2, fault: []runs.Fault{{Code: 79, Text: "Xid 79"}, {Code: 79, Text: "Xid 79"}}, read: func() *runs.Reading { return nil }}
	j.options.Observe = func(context.Context) Observer { return eye }
	_, err := j.run(t.Context())
	if err == nil || !strings.HasSuffix(err.Error(), "; the driver reported: Xid 79") || j.slept != faultPatience {
		t.Errorf("%v, after %v", err, j.slept)
	}
	if kinds := j.kinds(); !strings.HasSuffix(kinds, "fault, fault, gone, decision") {
		t.Error(kinds)
	}
}

func TestReadingInWords(t *testing.T) {
	busy, hot, used, ecc := 97, 64, 3*memory.GiB, int64(2)
	for want, r := range map[string]runs.Reading{
		"97 % busy, 64 °C, 3 GiB used, clocks held back: power cap, too hot, uncorrected memory errors: 2": {Utilisation: &busy, Temperature: &hot, Used: &used, Throttled: []string{"power cap", "too hot"}, UncorrectedECC: &ecc},
		"64 °C":            {Temperature: &hot},
		"nothing is known": {},
	} {
		if got := r.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
