package nodes

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"headroom/harness"
	"headroom/recovery"
	"headroom/wrap/exits"
)

// quick are times with which nothing has to be waited for; a test of a node that is gone makes Gone short.
var quick = Times{Gone: time.Hour, Join: time.Hour, Beat: time.Millisecond, Tick: time.Millisecond, Grace: 0}

func joins(t *testing.T, dir string, node int, change func(*Options)) *Member {
	t.Helper()
	o := Options{Dir: dir, Trains: "x", Times: quick, Say: t.Logf}
	if change != nil {
		change(&o)
	}
	m, err := Join(Place{node, 2}, o)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// kill ends a member as SIGKILL would: it says nothing more.
func (m *Member) kill() {
	close(m.quit)
	<-m.done
}

// led makes node 0 order an attempt, and the other node begin it.
func led(t *testing.T, leader, other *Member, attempt int) Order {
	t.Helper()
	o := Order{Attempt: attempt, Settings: harness.Settings{Plan: recovery.Plan{Effective: 16, World: 2, Micro: 8 / attempt}}, From: &Checkpoint{Path: "c", Step: attempt}}
	var got *Order
	var failed error
	var began sync.WaitGroup
	began.Go(func() { got, failed = other.Follow(t.Context()) })
	err := leader.Lead(t.Context(), o)
	began.Wait()
	if err != nil || failed != nil || got == nil || got.Attempt != attempt || got.Settings.Plan != o.Settings.Plan || *got.From != *o.From {
		t.Fatalf("%v, %v: %+v", err, failed, got)
	}
	return o
}

// TestTogether is a run of two attempts, with the files of an earlier job in the folder: an order to go on, and a failure.
func TestTogether(t *testing.T) {
	for first := range 2 {
		t.Run(fmt.Sprintf("node %d comes first", first), func(t *testing.T) { together(t, first) })
	}
}

func together(t *testing.T, first int) {
	dir := t.TempDir()
	for _, s := range []State{
		{Version: version, Of: 2, Start: "old", Trains: "another", Beat: 9, Attempt: 5, Members: []string{"old", "older"}, Order: &Order{Attempt: 5}, Over: &Over{Done: true}},
		{Version: version, Node: 1, Of: 2, Start: "older", Trains: "another", Leader: "old", Beat: 9, Attempt: 1, Report: &Report{Outcome: exits.Outcome{Kind: exits.Failed}}, Stopping: true, Left: true},
	} {
		if err := write(dir, s); err != nil {
			t.Fatal(err)
		}
	}
	both := [2]*Member{}
	for _, n := range []int{first, 1 - first} {
		both[n] = joins(t, dir, n, nil)
		err := both[n].until(t.Context(), func() (bool, error) { return both[n].others[1-n].seen.State.Start != "", nil }) // what the earlier job has left, at first
		if err != nil {
			t.Fatal(err)
		}
	}
	leader, other := both[0], both[1]
	led(t, leader, other, 1)
	other.Report(Report{Outcome: exits.Outcome{Kind: exits.OutOfMemory, Confidence: exits.Certain, Rank: 3}})
	if e := leader.Ending(t.Context()); e == nil || e.How != Failed || !strings.Contains(e.Why, "node 1") {
		t.Fatalf("%+v", e)
	}
	leader.Report(Report{Peer: true, Outcome: exits.Outcome{Kind: exits.Failed}})
	all, err := leader.Gather()
	if err != nil || len(all) != 2 || Counts(all) != 1 || all[1].Outcome.Rank != 3 {
		t.Fatalf("%+v, %v", all, err)
	}
	led(t, leader, other, 2)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if e := other.Ending(ctx); e != nil {
		t.Errorf("attempt 2 is to end because of attempt 1: %+v", e)
	}
	for _, m := range []*Member{leader, other} {
		m.Report(Report{Outcome: exits.Outcome{Kind: exits.Done}})
	}
	if all, err := leader.Gather(); err != nil || all[Counts(all)].Outcome.Kind != exits.Done {
		t.Errorf("%+v, %v", all, err)
	}
	leader.Leave(Over{Done: true})
	if o, err := other.Follow(t.Context()); o != nil || err != nil {
		t.Errorf("%+v, %v", o, err)
	}
	other.Leave(Over{})
}

// TestRunEndsUnfinished checks what the other nodes learn of a run that node 0 has ended.
func TestRunEndsUnfinished(t *testing.T) {
	for _, interrupted := range []bool{false, true} {
		dir := t.TempDir()
		leader, other := joins(t, dir, 0, nil), joins(t, dir, 1, nil)
		led(t, leader, other, 1)
		leader.Leave(Over{Interrupted: interrupted, Code: 3, Why: "gave up"})
		if e := other.Ending(t.Context()); e == nil || (e.How == Stopped) != interrupted {
			t.Errorf("%+v", e)
		}
		_, err := other.Follow(t.Context())
		var over *OverError
		if !errors.As(err, &over) || errors.Is(err, harness.ErrInterrupted) != interrupted || over.Over.Code != 3 || !strings.Contains(err.Error(), "gave up") {
			t.Errorf("%v", err)
		}
		other.Leave(Over{})
	}
}

// TestGone checks that a node that says nothing more ends the run on the others, and so does one that is started again by itself.
func TestGone(t *testing.T) {
	short := func(o *Options) { o.Times.Gone = 50 * time.Millisecond }
	for _, lost := range []int{0, 1} {
		for _, again := range []bool{false, true} {
			dir := t.TempDir()
			change := short
			if again {
				change = nil
			}
			both := []*Member{joins(t, dir, 0, change), joins(t, dir, 1, change)}
			led(t, both[0], both[1], 1)
			both[lost].kill()
			if again {
				both[lost] = joins(t, dir, lost, nil)
			}
			left := both[1-lost]
			if e := left.Ending(t.Context()); e == nil || e.How != Gone {
				t.Errorf("node %d: %+v", lost, e)
			}
			left.Report(Report{Peer: true, Outcome: exits.Outcome{Kind: exits.Failed}})
			var err error
			if lost == 0 {
				_, err = left.Follow(t.Context())
			} else {
				_, err = left.Gather()
			}
			var gone *LostError
			if !errors.As(err, &gone) || gone.Never || !errors.Is(err, harness.ErrInterrupted) {
				t.Errorf("node %d: %v", lost, err)
			}
			left.kill()
			if again {
				both[lost].kill()
			}
		}
	}
}

// TestNeverCame checks that a node waits for the others no longer than it should, and says whom it waits for.
func TestNeverCame(t *testing.T) {
	for node := range 2 {
		said := make(chan string, 10)
		m := joins(t, t.TempDir(), node, func(o *Options) {
			o.Times.Join, o.Times.Gone = 100*time.Millisecond, 0
			o.Say = func(format string, _ ...any) { said <- format }
		})
		var err error
		if node == 0 {
			err = m.Lead(t.Context(), Order{Attempt: 1})
		} else {
			_, err = m.Follow(t.Context())
		}
		var lost *LostError
		if !errors.As(err, &lost) || !lost.Never || !strings.Contains(lost.Why, "has not come") {
			t.Errorf("node %d: %v", node, err)
		}
		if text := <-said; !strings.Contains(text, "waiting for") {
			t.Error(text)
		}
		m.kill()
	}
}

// TestStops checks that a request to stop on one node reaches the other, and that neither takes it for a failure.
func TestStops(t *testing.T) {
	for asked := range 2 {
		dir := t.TempDir()
		both := []*Member{joins(t, dir, 0, nil), joins(t, dir, 1, nil)}
		led(t, both[0], both[1], 1)
		ctx, cancel := context.WithCancel(t.Context())
		release := both[asked].Stops(ctx)
		cancel()
		if e := both[1-asked].Ending(t.Context()); e == nil || e.How != Stopped {
			t.Errorf("%+v", e)
		}
		if release() {
			t.Error("it was not noticed")
		}
		for _, m := range both {
			m.kill()
		}
	}
}

// TestDoNotFit checks that nodes that cannot run one command together say so, on both, and start nothing.
func TestDoNotFit(t *testing.T) {
	dir := t.TempDir()
	leader, other := joins(t, dir, 0, nil), joins(t, dir, 1, func(o *Options) { o.Trains = "y" })
	_, err := other.Follow(t.Context())
	for _, err := range []error{err, leader.Lead(t.Context(), Order{Attempt: 1})} {
		if !errors.As(err, new(*MisfitError)) || !strings.Contains(err.Error(), "give all nodes the same command") {
			t.Errorf("%v", err)
		}
	}
	leader.kill()
	other.kill()
	first := joins(t, dir, 1, nil)
	second := joins(t, dir, 1, nil)
	if _, err := first.Follow(t.Context()); !errors.As(err, new(*MisfitError)) || !strings.Contains(err.Error(), "another headroom says that it is node 1 of 2") {
		t.Errorf("%v", err)
	}
	first.kill()
	second.kill()
}
