package harness

import (
	"fmt"
	"io"
	"os"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// statusEvery is how often status.json and metrics.jsonl are written. It bounds
// both the cost for short steps and how old what a reader sees may be.
const statusEvery = time.Second

// record writes an entry to the journal, tells the caller, and logs it. A
// journal that cannot be written does not end training: that is told once, and
// the folder keeps the entries until it can be.
func (r *runner) record(e Entry) {
	e.Time, e.Attempt, e.Step = r.o.Now(), r.number, r.step
	err := r.f.Record(e)
	if r.o.OnEntry != nil {
		r.o.OnEntry(e)
	}
	r.log.Log(levelOf(e.Kind), e.Text, zap.String("kind", string(e.Kind)), zap.Int("step", e.Step), zap.Int("attempt", e.Attempt))
	r.journalState(err)
}

// journalState tells when the journal stops being writable, and when it can be
// written again.
func (r *runner) journalState(err error) {
	switch {
	case err != nil && !r.journalDown:
		r.journalDown = true
		r.record(Entry{Kind: KindJournalFailed,
			Text: fmt.Sprintf("cannot write what happens: %v; training goes on: make room under %s, and the lines kept in memory are written", err, r.f.Dir())})
	case err == nil && r.journalDown:
		r.journalDown = false
		r.log.Info("the journal is written again", zap.Int("entries_lost", r.f.lostEntries()))
	}
}

func levelOf(k Kind) zapcore.Level {
	switch k {
	case KindDevice:
		return zapcore.DebugLevel
	case KindOOM, KindCheckpointFailed, KindDamaged, KindJournalFailed, KindFault, KindLost:
		return zapcore.WarnLevel
	case KindFailed:
		return zapcore.ErrorLevel
	}
	return zapcore.InfoLevel
}

// tick brings status.json and metrics.jsonl up to date, at most once a second.
func (r *runner) tick(now time.Time) {
	if now.Sub(r.interval.from) < statusEvery {
		return
	}
	if err := r.f.Flush(false); err != nil || r.journalDown {
		r.journalState(err)
	}
	r.setStatus(StateRunning, r.status.Reason)
}

// setStatus writes status.json. It is a convenience: a failure is logged once.
func (r *runner) setStatus(state State, reason string) {
	failures, losses, _ := r.f.tally()
	now, last, s := r.o.Now(), r.result.Last, &r.status
	s.State, s.Reason, s.Started, s.Updated = state, reason, r.started, now
	s.PID, s.Host = os.Getpid(), r.host
	s.Attempt, s.Step, s.Steps, s.Failures, s.Losses = r.number, r.step, r.o.Steps, failures, losses
	s.Plan = r.result.Plan
	if r.planned {
		s.Plan = r.history.Plan
	}
	if last.Step > 0 {
		s.Loss, s.Peak, s.Capacity = last.Loss, last.Memory.Peak, last.Memory.Capacity
	}
	if r.interval.seconds > 0 {
		s.SamplesPerSecond = float64(r.interval.samples) / r.interval.seconds
	}
	r.interval = interval{from: now}
	err := r.f.SetStatus(*s)
	if err != nil && !r.statusDown {
		r.log.Warn("status.json cannot be written", zap.Error(err))
	}
	r.statusDown = err != nil
}

// openLog opens the log of the attempt that starts. Without one the run goes
// on: everything in it also goes to Options.Log.
func (r *runner) openLog() {
	r.closeLog()
	file, err := r.f.AttemptLog(r.number)
	if err != nil {
		r.log.Warn("the attempt has no log of its own", zap.Error(err))
		return
	}
	r.logFile = file
	config := zap.NewProductionEncoderConfig()
	config.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	own := zapcore.NewCore(zapcore.NewConsoleEncoder(config), zapcore.AddSync(file), zapcore.DebugLevel)
	r.log = r.o.Log.WithOptions(
		zap.WrapCore(func(c zapcore.Core) zapcore.Core { return zapcore.NewTee(c, own) }),
		// A full disk is told by the journal, once, not by every line of the log.
		zap.ErrorOutput(zapcore.AddSync(io.Discard)))
}

func (r *runner) closeLog() {
	if r.logFile == nil {
		return
	}
	file := r.logFile
	r.log, r.logFile = r.o.Log, nil
	if err := file.Close(); err != nil {
		r.log.Warn("close the log of the attempt", zap.Error(err))
	}
}

// lasting prints a time in seconds as people read it.
func lasting(seconds float64) string {
	switch ms := 1000 * seconds; {
	case ms < 0.05:
		return "under 0.1 ms"
	case ms < 9.95:
		return fmt.Sprintf("%.1f ms", ms)
	case ms < 999.5:
		return fmt.Sprintf("%.0f ms", ms)
	}
	return fmt.Sprintf("%.1f s", seconds)
}
