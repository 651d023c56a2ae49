package harness

import (
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"headroom/memory"
	"headroom/runs"
)

// statusEvery is the interval at which status.json and metrics.jsonl are written.
// It bounds both the cost when steps are short and the age of what a reader sees.
const statusEvery = time.Second

// Note writes an entry to the journal, passes it to OnEntry and logs it. It fills
// in time, attempt and step. A journal that cannot be written does not end
// training: the failure is reported once, and the folder keeps the entries until
// the journal can be written again.
func (s *Session) Note(e runs.Entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.note(e)
}

func (s *Session) note(e runs.Entry) {
	e.Time, e.Attempt, e.Step = s.o.Now(), s.attempt, s.step
	e = s.scrubbed(e)
	err := s.f.Record(e)
	if s.o.OnEntry != nil {
		s.o.OnEntry(e)
	}
	s.log.Log(levelOf(e.Kind), e.Text, zap.String("kind", string(e.Kind)), zap.Int("step", e.Step), zap.Int("attempt", e.Attempt))
	s.journalState(err)
}

// scrubbed returns e without secrets in its texts.
func (s *Session) scrubbed(e runs.Entry) runs.Entry {
	if s.o.Scrub == nil {
		return e
	}
	e.Text = s.o.Scrub(e.Text)
	if e.Decision != nil {
		d := *e.Decision
		d.Reason, d.Brief, d.Hint = s.o.Scrub(d.Reason), s.o.Scrub(d.Brief), s.o.Scrub(d.Hint)
		e.Decision = &d
	}
	e.Unproven = slices.Clone(e.Unproven)
	for i, text := range e.Unproven {
		e.Unproven[i] = s.o.Scrub(text)
	}
	return e
}

// journalState reports when the journal can no longer be written, and when it can
// be written again. err is the result of the newest attempt to write it.
func (s *Session) journalState(err error) {
	switch {
	case err != nil && !s.journalDown:
		s.journalDown = true
		s.note(runs.Entry{Kind: runs.KindJournalFailed,
			Text: fmt.Sprintf("cannot write the journal: %v; training continues; make room under %s, so that the lines kept in memory can be written", err, s.f.Dir())})
	case err == nil && s.journalDown:
		s.journalDown = false
		s.log.Info("the journal is writable again", zap.Int("entries_lost", s.f.LostEntries()))
	}
}

// noteRemovals reports which files somebody removed from the folder of the live
// run.
func (s *Session) noteRemovals() {
	for _, text := range s.f.TakeRemovals() {
		s.note(runs.Entry{Kind: runs.KindMissing, Text: text})
	}
}

func levelOf(k runs.Kind) zapcore.Level {
	switch k {
	case runs.KindDevice:
		return zapcore.DebugLevel
	case runs.KindOOM, runs.KindCheckpointFailed, runs.KindReleased, runs.KindDamaged, runs.KindMissing, runs.KindJournalFailed, runs.KindFault, runs.KindGone, runs.KindWarning, runs.KindSurvived, runs.KindRefused:
		return zapcore.WarnLevel
	case runs.KindFailed:
		return zapcore.ErrorLevel
	}
	return zapcore.InfoLevel
}

// tick brings status.json and metrics.jsonl up to date, at most once a second, and
// checks that the folder still belongs to this process.
func (s *Session) tick() error {
	if s.o.Now().Sub(s.interval.from) < statusEvery {
		return nil
	}
	if err := s.f.StillHeld(); err != nil {
		return fmt.Errorf("step %d: the run's folder no longer belongs to this process: %w", s.step, err)
	}
	if err := s.f.Flush(false); err != nil || s.journalDown {
		s.journalState(err)
	}
	s.noteRemovals()
	s.setStatus(runs.StateRunning, s.status.Reason)
	return nil
}

// show brings status.json up to date before the body waits.
func (s *Session) show() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setStatus(runs.StateRunning, s.status.Reason)
}

// setStatus writes status.json. No run depends on this file, so repeated failures
// to write it are logged once.
func (s *Session) setStatus(state runs.State, reason string) {
	tally := s.f.Tally()
	now, last, to := s.o.Now(), s.result.Last, &s.status
	if s.o.Scrub != nil {
		reason = s.o.Scrub(reason)
	}
	to.State, to.Reason, to.Started, to.Updated = state, reason, s.started, now
	to.PID, to.Host = os.Getpid(), s.host
	to.Attempt, to.Step, to.Steps, to.Failures, to.DeviceGone = s.attempt, s.step, s.o.Steps, tally.Failures, tally.Gone
	to.Plan = s.result.Plan
	if s.planned {
		to.Plan = s.history.Plan
	}
	if last.Step > 0 {
		to.Loss, to.Peak, to.Capacity = last.Loss, last.Memory.Peak, last.Memory.Capacity
	}
	if s.interval.seconds > 0 {
		to.SamplesPerSecond = float64(s.interval.samples) / s.interval.seconds
	}
	s.interval = interval{from: now}
	err := s.f.SetStatus(*to)
	if err != nil && s.statusErr == nil {
		s.log.Warn("status.json cannot be written", zap.Error(err))
	}
	s.statusErr = err
}

// Save writes a checkpoint of the current state, unless that state has one already.
// It writes the metrics first, so that the lines up to the step of a checkpoint are
// on disk before the checkpoint is. If must is true, it saves the state even if the
// metrics cannot be written, since weights are worth more. keep is the number of
// newest checkpoints to keep. The session is not locked while save runs.
func (s *Session) Save(save func(io.Writer) error, keep int, must bool) error {
	next, log := s.checkpoint()
	if next == nil {
		return nil
	}
	if err := s.f.StillHeld(); err != nil {
		return err
	}
	if err := s.f.FlushMetrics(true); err != nil {
		if !must {
			return fmt.Errorf("write metrics.jsonl: %w", err)
		}
		log.Warn("metrics.jsonl cannot be written", zap.Error(err))
	}
	c, released, err := s.f.SaveCheckpoint(*next, save)
	if err != nil {
		return err
	}
	s.recordSaved(c, released)
	if err := s.f.Prune(keep); err != nil {
		log.Warn("older checkpoints cannot be removed", zap.Error(err))
	}
	return nil
}

// checkpoint returns the checkpoint of the current state, which is not written yet, and the
// attempt's log. The checkpoint is nil if that state has been saved already.
func (s *Session) checkpoint() (*runs.Checkpoint, *zap.Logger) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.saved == s.step {
		return nil, s.log
	}
	return &runs.Checkpoint{Step: s.step, Samples: s.samples, Attempt: s.attempt,
		Plan: s.history.Plan, Learned: s.history.Learned(s.o.Plan, s.o.Precision), Time: s.o.Now()}, s.log
}

// recordSaved records that checkpoint c has been written, and which ones were removed to make
// room for it.
func (s *Session) recordSaved(c runs.Checkpoint, released []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.saved = c.Step
	seconds := s.o.Now().Sub(c.Time).Seconds()
	text := fmt.Sprintf("checkpoint of step %d: %v in %s", c.Step, memory.Bytes(c.Size), lasting(seconds))
	s.note(runs.Entry{Kind: runs.KindCheckpoint, Text: text, Seconds: seconds})
	if len(released) > 0 {
		s.note(runs.Entry{Kind: runs.KindReleased, Text: fmt.Sprintf("the disk is full: the checkpoint of %s was removed to make room for that of step %d; free some space, or keep fewer with train.keep", steps(released), c.Step)})
	}
}

// steps returns the given steps in words, such as "step 10" or "steps 10 to 20".
// all must be sorted and have at least one step.
func steps(all []int) string {
	text := fmt.Sprintf("step %d", all[0])
	if len(all) > 1 {
		text = fmt.Sprintf("steps %d to %d", all[0], all[len(all)-1])
	}
	return text
}

func (s *Session) saveFailed(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.note(runs.Entry{Kind: runs.KindCheckpointFailed, Text: fmt.Sprintf("checkpoint of step %d could not be written: %v; older ones are untouched; make room or fix the disk under %s before the next one", s.step, err, s.f.Dir())})
}

// openLog opens the log of the attempt that is starting. A failure is only logged,
// because everything in that log also goes to SessionOptions.Log.
func (s *Session) openLog() {
	s.closeLog()
	file, err := s.f.AttemptLog(s.attempt)
	if err != nil {
		s.log.Warn("the attempt has no log of its own", zap.Error(err))
		return
	}
	s.logFile = file
	config := zap.NewProductionEncoderConfig()
	config.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	own := zapcore.NewCore(zapcore.NewConsoleEncoder(config), zapcore.AddSync(file), zapcore.DebugLevel)
	s.log = s.o.Log.WithOptions(
		zap.WrapCore(func(c zapcore.Core) zapcore.Core { return zapcore.NewTee(c, own) }),
		// The journal reports a full disk, once. Without this option every line of
		// the log would report it.
		zap.ErrorOutput(zapcore.AddSync(io.Discard)))
}

// logger returns the log of the attempt.
func (s *Session) logger() *zap.Logger {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log
}

func (s *Session) closeLog() {
	if s.logFile == nil {
		return
	}
	file := s.logFile
	s.log, s.logFile = s.o.Log, nil
	if err := file.Close(); err != nil {
		s.log.Warn("the log of the attempt cannot be closed", zap.Error(err))
	}
}

// lasting formats a duration, given in seconds, for people to read.
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
