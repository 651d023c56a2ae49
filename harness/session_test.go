package harness

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"headroom/memory"
	"headroom/recovery"
	"headroom/runs"
)

// sessionFor returns a session of a new run, in its first attempt.
func sessionFor(t *testing.T, o SessionOptions) *Session {
	t.Helper()
	f, err := runs.Open(filepath.Join(t.TempDir(), "run"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	s, err := Begin(f, o)
	if err == nil {
		err = s.Attempt(nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestASessionLocksItself checks, with the race detector, that the journal can be used by many
// goroutines while the body reports steps and failures, that no entry is lost or counted twice,
// and that OnEntry sees the entries in the journal's order.
func TestASessionLocksItself(t *testing.T) {
	const writers, each = 8, 20
	var told []string
	s := sessionFor(t, SessionOptions{
		Plan:    recovery.Plan{Effective: 64, World: 1, Micro: 64},
		OnEntry: func(e runs.Entry) { told = append(told, e.Text) },
	})
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			var journal Journal = s
			for n := range each {
				journal.Note(runs.Entry{Kind: runs.KindWorker, Text: strconv.Itoa(w) + " notes " + strconv.Itoa(n)})
				journal.Survived(runs.Entry{Text: strconv.Itoa(w) + " survives " + strconv.Itoa(n), OOM: &memory.OutOfMemoryError{Requested: 1}})
				journal.Stepped(runs.ProcessStep{PID: w, Made: n})
				journal.KeepPieces(max(1, journal.Pieces()/2))
				journal.Commands(runs.Process{PID: w}, "")
				s.beat(1)
				if made := journal.Made(); made < n || made >= each {
					t.Errorf("%d steps made, at least %d reported", made, n)
				}
			}
		})
	}
	for range 4 {
		step := s.at().step + 1
		if _, err := s.Step(runs.StepReport{Step: step, Samples: 64, First: int64(step-1) * 64}); err != nil {
			t.Error(err)
		}
		if _, err := s.Handle(recovery.Event{OOM: &memory.Evidence{Failure: memory.OutOfMemoryError{Requested: 1, Phase: memory.PhaseForward, Micro: s.Running().Largest()}}}, 0); err != nil {
			break // nothing is left to try, which does not matter here
		}
	}
	all.Wait()
	result, err := s.End(nil)
	if err != nil || result.InPlace != writers*each {
		t.Errorf("%d of %d failures survived in place, %v", result.InPlace, writers*each, err)
	}
	entries, err := runs.ReadJournal(s.f.Dir())
	var written []string
	for _, e := range entries {
		written = append(written, e.Text)
	}
	if err != nil || !slices.Equal(written, told) {
		t.Errorf("the journal has %d entries, OnEntry saw %d, or in another order: %v", len(written), len(told), err)
	}
}

// TestTheBodyMayUseTheJournalWhenItIsAsked checks that a session is not locked while it asks
// the body whether it can carry out a decision, or while the body saves.
func TestTheBodyMayUseTheJournalWhenItIsAsked(t *testing.T) {
	s := sessionFor(t, SessionOptions{Steps: 2, Plan: recovery.Plan{Effective: 8, World: 1, Micro: 8}})
	asked := false
	failure := memory.OutOfMemoryError{Requested: 4, Stats: memory.Stats{Capacity: 10, Reserved: 8, Allocated: 8, Free: 2}, Phase: memory.PhaseForward, Micro: 8}
	_, err := s.HandleIf(recovery.Event{OOM: &memory.Evidence{Failure: failure}}, 0, func(next Settings) error {
		asked = true
		s.Note(runs.Entry{Kind: runs.KindWarning, Text: "asked about " + next.Plan.String()})
		return nil
	})
	if err != nil || !asked {
		t.Errorf("asked: %v, %v", asked, err)
	}
	saved := func(io.Writer) error {
		s.Note(runs.Entry{Kind: runs.KindWarning, Text: "saving"})
		return nil
	}
	if _, err := s.Step(runs.StepReport{Step: 1, Samples: 8}); err != nil {
		t.Error(err)
	}
	if err := s.Save(saved, 1, true); err != nil {
		t.Error(err)
	}
}

// unprovenError is an error of a body that needs conditions vouched for.
type unprovenError []string

func (unprovenError) Error() string { return "it cannot be proven" }

func (e unprovenError) Unproven() []string { return e }

// TestSecretsAreNotRecorded checks that no text of an entry keeps a secret, and that the facts of
// the caller's error stay as they are.
func TestSecretsAreNotRecorded(t *testing.T) {
	var entries []runs.Entry
	s := sessionFor(t, SessionOptions{
		Plan:    recovery.Plan{Effective: 64, World: 1, Micro: 64},
		Scrub:   func(text string) string { return strings.ReplaceAll(text, "SECRET", "***") },
		OnEntry: func(e runs.Entry) { entries = append(entries, e) },
	})
	s.Note(runs.Entry{Kind: runs.KindDecision, Text: "SECRET", Decision: &recovery.Decision{Reason: "a SECRET", Brief: "b SECRET", Hint: "c SECRET"}})
	failed := unprovenError{"d SECRET", "e"}
	if _, err := s.End(fmt.Errorf("attempt 2: %w", failed)); !errors.As(err, &failed) || failed[0] != "d SECRET" {
		t.Errorf("%v", err)
	}
	decided, end := entries[len(entries)-2], entries[len(entries)-1]
	if d := *decided.Decision; decided.Text != "***" || d.Reason != "a ***" || d.Brief != "b ***" || d.Hint != "c ***" {
		t.Errorf("%+v, %+v", decided, d)
	}
	if end.Kind != runs.KindFailed || !slices.Equal(end.Unproven, []string{"d ***", "e"}) {
		t.Errorf("%+v", end)
	}
}

// TestTold checks that a session takes over settings, and an attempt's number, from whoever decides, and records a
// change of the plan once.
func TestTold(t *testing.T) {
	plan := recovery.Plan{Effective: 16, World: 2, Micro: 8, Uniform: true}
	s := sessionFor(t, SessionOptions{Plan: plan, Policy: recovery.Policy{Host: []string{"a", "b"}}})
	next := Settings{Plan: plan.WithMicro(4), Recomputing: true, Eased: []string{"a"}}
	for range 2 {
		s.Told(7, next, "node 0")
		if err := s.Attempt(nil); err != nil {
			t.Fatal(err)
		}
	}
	if got := s.Settings(); got.Plan != next.Plan || !got.Recomputing || !slices.Equal(got.Eased, next.Eased) || s.Number() != 7 {
		t.Errorf("%+v in attempt %d", got, s.Number())
	}
	entries, err := runs.ReadJournal(s.f.Dir())
	if err != nil {
		t.Fatal(err)
	}
	told := slices.DeleteFunc(entries, func(e runs.Entry) bool { return e.Kind != runs.KindDecision })
	if len(told) != 1 || *told[0].Plan != next.Plan || told[0].Text != "node 0 has decided: "+next.Plan.String() {
		t.Errorf("%+v", told)
	}
}
