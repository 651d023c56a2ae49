package nvml

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"
)

func TestXidString(t *testing.T) {
	for x, want := range map[Xid]string{
		{GPU: 2, Code: 79}:  "Xid 79 on GPU 2: the GPU has fallen off the bus",
		{GPU: 0, Code: 999}: "Xid 999 on GPU 0",

		{GPU: Unknown, Code: 61}: "Xid 61 on an unknown GPU: internal micro-controller breakpoint",
	} {
		if got := x.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestEveryCallAnswers checks that no call crashes and that every error is an
// *UnavailableError that says what is missing. This must hold with and without a GPU,
// NVML and the build tag.
func TestEveryCallAnswers(t *testing.T) {
	check := func(call string, err error) {
		t.Helper()
		var missing *UnavailableError
		if err != nil && !errors.As(err, &missing) {
			t.Errorf("%s: %T: %v", call, err, err)
		}
	}
	for range 2 { // the second round uses what the first one has opened
		all, err := GPUs()
		check("GPUs", err)
		if (err == nil) == (all == nil) {
			t.Errorf("GPUs: %v and %v", all, err)
		}
		_, err = DriverVersions()
		check("DriverVersions", err)
		ctx, cancel := context.WithCancel(t.Context())
		events, err := Watch(ctx)
		check("Watch", err)
		cancel()
		if err == nil {
			for x := range events {
				t.Errorf("unexpected: %v", x)
			}
		}
	}
}

// scripted is a source that returns the given steps in order, and no events after
// them.
type scripted struct {
	steps   chan scriptedStep
	waiting chan struct{} // receives a value at every wait
	closed  int
}

type scriptedStep struct {
	xid Xid
	ok  bool
	err error
}

func newScripted(steps ...scriptedStep) *scripted {
	s := &scripted{steps: make(chan scriptedStep, len(steps)), waiting: make(chan struct{}, 1)}
	for _, step := range steps {
		s.steps <- step
	}
	return s
}

func (s *scripted) wait(time.Duration) (Xid, bool, error) {
	select {
	case s.waiting <- struct{}{}:
	default:
	}
	select {
	case step := <-s.steps:
		return step.xid, step.ok, step.err
	default:
		return Xid{}, false, nil
	}
}

func (s *scripted) close() { s.closed++ }

func TestWatchTellsInOrder(t *testing.T) {
	s := newScripted(scriptedStep{xid: Xid{Code: 13}, ok: true}, scriptedStep{},
		scriptedStep{xid: Xid{Code: 43}, ok: true}, scriptedStep{err: errors.New("broken")}, scriptedStep{xid: Xid{Code: 1}, ok: true})
	var codes []int
	for x := range watch(t.Context(), s) {
		codes = append(codes, x.Code)
	}
	if !slices.Equal(codes, []int{13, 43}) {
		t.Errorf("told %v, want 13 and 43, and nothing once NVML has failed", codes)
	}
	if s.closed != 1 {
		t.Errorf("the source was closed %d times", s.closed)
	}
}

// TestWatchEnds checks that a watch ends with its context, whatever the watch is
// doing, and that it closes the source before it closes the channel.
func TestWatchEnds(t *testing.T) {
	for name, steps := range map[string][]scriptedStep{
		"waiting":           nil,
		"nobody to tell it": {{xid: Xid{Code: 13}, ok: true}},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			s := newScripted(steps...)
			events := watch(ctx, s)
			<-s.waiting
			cancel()
			for range events { // an event may still come if both the receiver and the context are ready
			}
			if s.closed != 1 {
				t.Errorf("the source was closed %d times", s.closed)
			}
		})
	}
}
