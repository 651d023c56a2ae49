package worker

import (
	"fmt"
	"net"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"headroom/memory"
	"headroom/runs"
)

const gib = memory.GiB

// oom returns the message with which a process reports a failure on a device of 24 GiB.
// more holds further fields to append.
func oom(id, rows, micro int, more string) string {
	return failure("oom", id, rows, micro, more)
}

// failure returns a message of the given type about a failure on a device of 24 GiB.
func failure(kind string, id, rows, micro int, more string) string {
	return fmt.Sprintf(`{"type":%q,"id":%d,"rows":%d,"micro":%d,"phase":"forward","requested":%d,"free":%d,"allocated":%d,"reserved":%d,"capacity":%d,"where":"train.py:31"%s}`,
		kind, id, rows, micro, 2*gib, gib, 22*gib, 23*gib, 24*gib, more)
}

// TestFailureSurvived checks the entries in the books about the failures that a process
// reports, and that its limit is kept.
func TestFailureSurvived(t *testing.T) {
	b := &books{}
	l := begun(t, b, Armed)
	c := dial(t, l)
	c.send(helloLine(0, 1))
	if a := c.hears(); a.Type != "plan" || a.V != protocol || a.Mode != Armed || a.Limit != 0 {
		t.Errorf("the plan: %+v", a)
	}
	c.send(oom(7, 40, 40, `,"step":3`))
	c.send(oom(8, 40, 20, ""))
	c.send(`{"type":"survived","way":"pieces","rows":40,"pieces":4}`)
	c.send(`{"type":"step","step":3,"rows":40,"pieces":4,"limit":10,"seconds":3,"allocated":5,"forward":11,"backward":6,"spilled":7,"lost":1.5}`)
	for step, cut := range [][2]int{{40, 4}, {7, 1}, {40, 4}, {40, 3}, {40, 1}, {40, 1}, {40, 3}, {0, 5}} {
		c.send(fmt.Sprintf(`{"type":"step","step":%d,"rows":%d,"pieces":%d}`, 4+step, cut[0], cut[1]))
	}
	c.send(`{"type":"bye"}`)
	seen := ended(t, l)
	if !seen.Attached || seen.Survived != 1 || seen.OOM != nil {
		t.Errorf("%+v", seen)
	}
	if len(b.steps) != 2 || b.steps[1].Made != 11 || b.steps[1].Seconds <= 0 || b.steps[0].Made != 3 || b.steps[0].Rows != 40 || b.steps[0].Pieces != 4 || b.steps[0].PID != os.Getpid() || b.steps[0].Time.IsZero() {
		t.Errorf("%+v: the first step and the last are written down, and the others of the same second are not", b.steps)
	}
	if m := b.steps[0]; m.Memory.Allocated != 5 || m.Forward != 11 || m.Backward != 6 || m.Host != 7 || m.Lost != 1.5 {
		t.Errorf("%+v", m)
	}
	var repeated []bool
	for _, e := range b.entries {
		if e.Kind != runs.KindSurvived {
			continue
		}
		if first := len(repeated) == 0; first && (e.InStep != 3 || e.Seconds <= 0) || !first && e.Seconds != 0 {
			t.Errorf("%+v: the first failure has the step, and the time that all of the step's failures cost", e)
		}
		repeated = append(repeated, e.Repeated)
	}
	if !slices.Equal(repeated, []bool{false, true}) {
		t.Errorf("repeated %v: two failures of one step count as one", repeated)
	}
	survived := b.texts(runs.KindSurvived)
	if len(survived) != 2 || !strings.HasPrefix(survived[0], "out of memory at micro-batch 40 in forward: 2 GiB asked for") ||
		!strings.HasSuffix(survived[1], "(train.py:31); survived in place: 40 rows in 4 pieces") {
		t.Errorf("%q", survived)
	}
	ran := []string{"a batch of 40 rows runs in 4 pieces of at most 10", "a batch of 40 rows runs in 3 pieces of at most 14", "a batch of 40 rows runs in one piece again"}
	if b.pieces != 10 || !slices.Equal(b.texts(runs.KindWorker)[1:], ran) {
		t.Errorf("kept %d, %q", b.pieces, b.texts(runs.KindWorker))
	}
	last := b.entries[len(b.entries)-1-len(ran)]
	if last.Verdict == nil || last.Verdict.Cause != memory.Batch || last.OOM.Micro != 20 {
		t.Errorf("%+v", last)
	}
}

// TestLastStepsAreCounted checks that the steps that a process completed after its last report are
// counted, and that their time ends with the last of these steps, not with the bye.
func TestLastStepsAreCounted(t *testing.T) {
	for bye, want := range map[string]int{`,"step":12,"seconds":0`: 12, `,"step":9,"seconds":100`: 9, ``: 9} {
		b := &books{}
		l := begun(t, b, Armed)
		c := dial(t, l)
		c.send(helloLine(0, 1))
		c.hears()
		c.send(`{"type":"step","step":1,"rows":40,"pieces":4}`)
		c.send(`{"type":"step","step":9,"rows":40,"pieces":4}`)
		c.send(`{"type":"bye"` + bye + `}`)
		ended(t, l)
		last := b.steps[len(b.steps)-1]
		if last.Made != want || last.Rows != 40 || last.Pieces != 4 || last.Seconds <= 0 || last.Seconds > 0.5 {
			t.Errorf("%s: %+v, want %d steps", bye, last, want)
		}
	}
}

// TestSurvivalTakesTime checks that headroom measures how long it took to survive a failure, and
// that it records no time if no failure was reported.
func TestSurvivalTakesTime(t *testing.T) {
	b := &books{}
	l := begun(t, b, Armed)
	c := dial(t, l)
	c.send(helloLine(0, 1))
	c.hears()
	reported := time.Now()
	c.send(oom(1, 40, 40, `,"step":2`))
	c.read()
	told := time.Now()
	other := dial(t, l) // something to do that takes longer than settling
	other.send(helloLine(0, 1))
	other.hears()
	other.send(`{"type":"bye"}`)
	survived := time.Now()
	c.send(`{"type":"survived","way":"pieces","rows":40,"pieces":4,"step":2}`)
	c.send(`{"type":"survived","way":"step","step":2}`)
	c.send(oom(1, 40, 40, `,"step":3`))
	c.send(`{"type":"survived","way":"pieces","rows":40,"pieces":4,"step":3,"ago":3600}`) // what came after is not its time
	c.send(`{"type":"refused","id":3,"why":"no reason","step":5}`)
	c.send(`{"type":"bye"}`)
	ended(t, l)
	var found []runs.Entry
	for _, e := range b.entries {
		if e.Kind == runs.KindSurvived || e.Kind == runs.KindRefused {
			found = append(found, e)
		}
	}
	if len(found) != 4 || found[0].Seconds < survived.Sub(told).Seconds() || found[0].Seconds > time.Since(reported).Seconds() || found[0].InStep != 2 || found[1].Seconds != 0 || found[1].InStep != 2 || found[2].Seconds != 0 || found[2].InStep != 3 || found[3].InStep != 5 {
		t.Errorf("%+v", found)
	}
}

// TestGrowthIsTold checks that a leak is reported before it ends a run, and that the process is
// asked to look for its cause.
func TestGrowthIsTold(t *testing.T) {
	b := &books{}
	l := begun(t, b, Armed)
	c := dial(t, l)
	c.send(helloLine(0, 1))
	c.hears()
	for step := 1; step <= 100; step++ {
		held := 20*gib + memory.Bytes(step)*gib/10
		c.send(fmt.Sprintf(`{"type":"step","step":%d,"allocated":%d,"reserved":%d,"peak":%d,"free":%d,"capacity":%d}`, step, held, held, held, 80*gib-held, 80*gib))
	}
	if a := c.hears(); a.Type != "look" {
		t.Errorf("%+v", a)
	}
	c.read()
	if at, why := l.RunsOut(); time.Until(at) > time.Minute || at.IsZero() || !strings.HasSuffix(why, "grows by 103.7 MiB per step") {
		t.Errorf("runs out at %v: %q", at, why)
	}
	c.send(`{"type":"holds","level":"warning","kind":"collected","name":"seen","per_step":104857600}`)
	c.send(fmt.Sprintf(`{"type":"step","step":101,"allocated":%d,"reserved":%d,"peak":%d,"capacity":%d}`, 31*gib, 31*gib, 31*gib, 80*gib))
	c.read()
	if _, why := l.RunsOut(); !strings.HasPrefix(why, "memory grows by 100 MiB per step: `seen` holds ") {
		t.Errorf("it is known what holds it: %q", why)
	}
	c.send(fmt.Sprintf(`{"type":"step","step":102,"allocated":%d,"capacity":%d}`, gib, 80*gib))
	c.read()
	if at, _ := l.RunsOut(); !at.IsZero() {
		t.Errorf("it holds little again, and runs out at %v", at)
	}
	c.send(`{"type":"bye"}`)
	ended(t, l)
	if at, _ := l.RunsOut(); !at.IsZero() {
		t.Errorf("it has ended, and runs out at %v", at)
	}
	told := b.texts(runs.KindWarning)
	if len(told) == 0 || !strings.HasPrefix(told[0], "memory held between steps grows by ") || !strings.Contains(told[0], "memory runs out in about ") {
		t.Errorf("%q", told)
	}
}

// TestHolderIsTold checks that what a process has found to hold memory is told once, is the cause of a
// failure that follows, and is known at the end of the attempt.
func TestHolderIsTold(t *testing.T) {
	b := &books{}
	l := begun(t, b, Armed)
	l.o.Joined = func(h memory.Holder) memory.Holder { h.Cure += " at once"; return h }
	c := dial(t, l)
	c.send(helloLine(0, 1))
	c.hears()
	holds := `{"type":"holds","step":40,"level":"%s","kind":"collected","name":"seen","kept":"train.py:7","made":"train.py:12","tensors":40,"bytes":4294967296,"rate":1.0,"per_step":104857600,"graph":false,"host":true,"patience":0,"ends":%d,"seconds":3600,"cure":"empty it"}`
	c.send(fmt.Sprintf(holds, "warning", 290))
	c.send(`{"type":"step","step":41,"rows":16,"pieces":1}`)
	c.read()
	if at, why := l.RunsOut(); time.Until(at) > time.Hour || time.Until(at) < 59*time.Minute || !strings.HasPrefix(why, "memory grows by 100 MiB per step: `seen`") {
		t.Errorf("runs out at %v: %q", at, why)
	}
	c.send(fmt.Sprintf(holds, "info", 0))
	c.send(fmt.Sprintf(`{"type":"oom","step":51,"rows":16,"requested":%d,"phase":"backward"}`, 3*gib))
	c.send(`{"type":"survived","step":51,"way":"pieces","rows":16,"pieces":2}`)
	c.send(`{"type":"bye","step":60}`)
	seen := ended(t, l)
	want := "memory grows by 100 MiB per step: `seen` (train.py:7) holds 40 tensors, 4 GiB after step 40, one more every step, made at train.py:12"
	if told := b.texts(runs.KindWarning); !slices.Equal(told, []string{want + "; at that rate memory runs out in about 1 h 0 min, near step 290; empty it at once"}) {
		t.Errorf("%q", told)
	}
	then := strings.Replace(want, "40 tensors, 4 GiB after step 40", "about 50 tensors, about 5 GiB after step 50", 1)
	if told := b.texts(runs.KindSurvived); len(told) != 1 || !strings.HasSuffix(told[0], "16 rows in 2 pieces; "+then) {
		t.Errorf("%q", told)
	}
	if seen.Holder == nil || seen.Holder.Name != "seen" || !seen.Holder.Host || seen.Holder.Tensors != 60 || seen.Holder.Step != 60 {
		t.Errorf("%+v", seen.Holder)
	}
}

// TestFirstHolderIsTold checks that of two messages about one holder the first is told, also if the
// script is read more slowly for it.
func TestFirstHolderIsTold(t *testing.T) {
	b := &books{}
	l := begun(t, b, Armed)
	both := make(chan struct{})
	l.o.Joined = func(h memory.Holder) memory.Holder {
		if h.Step == 40 {
			<-both
		}
		return h
	}
	c := dial(t, l)
	c.send(helloLine(0, 1))
	c.hears()
	for _, m := range []struct {
		level string
		step  int
	}{{"warning", 40}, {"info", 50}} {
		c.send(fmt.Sprintf(`{"type":"holds","step":%d,"level":"%s","kind":"collected","name":"seen","kept":"train.py:7","tensors":40,"bytes":4294967296,"per_step":104857600,"cure":"empty it"}`, m.step, m.level))
	}
	c.send(`{"type":"step","step":51,"rows":16,"pieces":1}`)
	c.read() // both have arrived
	close(both)
	c.send(`{"type":"bye","step":60}`)
	ended(t, l)
	if told := b.texts(runs.KindWarning); len(told) != 1 || !strings.Contains(told[0], "after step 40") {
		t.Errorf("%q", told)
	}
}

// TestNextAttemptKnows checks that the processes of an attempt are told the limit that
// an earlier attempt settled on.
func TestNextAttemptKnows(t *testing.T) {
	l := begun(t, &books{pieces: 12}, Armed)
	c := dial(t, l)
	c.send(helloLine(0, 1))
	if a := c.hears(); a.Limit != 12 {
		t.Errorf("%+v", a)
	}
	c.send(`{"type":"step","step":1,"rows":8,"pieces":2,"limit":4}`)
	c.read()
	c.send(`{"type":"bye"}`)
	next := dial(t, l) // the first process's new limit does not apply to it, since it may train something else
	next.send(helloLine(0, 1))
	if a := next.hears(); a.Limit != 12 {
		t.Errorf("%+v", a)
	}
	next.send(`{"type":"bye"}`)
	ended(t, l)
}

// TestRestartedTrainingKnows checks that a process that its launcher has started again in the same attempt is told what
// the ranks of that training had settled on, and nobody else is.
func TestRestartedTrainingKnows(t *testing.T) {
	b := &books{pieces: 12}
	l := begun(t, b, Armed)
	hello := func(training string, rank int) *client {
		c := dial(t, l)
		c.send(fmt.Sprintf(`{"type":"hello","v":2,"rank":%d,"world":2,"training":%q}`, rank, training))
		return c
	}
	var ranks []*client
	for rank, limit := range []int{0, 6} {
		c := hello("torchrun 7 none", rank)
		c.hears()
		c.send(fmt.Sprintf(`{"type":"step","step":1,"limit":%d}`, limit))
		c.read()
		ranks = append(ranks, c)
	}
	other := hello("ray 41ff", 0)
	other.hears()
	other.send(`{"type":"step","step":1,"limit":5}`)
	other.read()
	if kept := b.kept(); kept != 5 {
		t.Errorf("kept %d: the ranks of one training say nothing about those of another", kept)
	}
	for _, c := range []struct {
		training string
		want     int
	}{{"torchrun 7 none", 6}, {"ray 41ff", 5}, {"torchrun 8 none", 12}, {"", 12}} {
		next := hello(c.training, 0)
		if a := next.hears(); a.Limit != c.want {
			t.Errorf("%q: %+v, want %d", c.training, a, c.want)
		}
		ranks = append(ranks, next)
	}
	for _, c := range append(ranks, other) {
		c.send(`{"type":"bye"}`)
	}
	ended(t, l)
}

// TestLimitIsKept checks which of the numbers that a process reports with its steps is kept: the
// newest, 0 included, but none that is impossible.
func TestLimitIsKept(t *testing.T) {
	for limits, want := range map[string]int{"": 12, `,"limit":4`: 4, `,"limit":0`: 0, `,"limit":-1`: 12, `,"limit":9999999999`: 12} {
		b := &books{pieces: 12}
		l := begun(t, b, Armed)
		c := dial(t, l)
		c.send(helloLine(0, 1))
		c.send(`{"type":"step","step":1` + limits + `}`)
		c.read()
		c.send(`{"type":"bye"}`)
		ended(t, l)
		if b.pieces != want {
			t.Errorf("%s: kept %d, want %d", limits, b.pieces, want)
		}
	}
}

// TestFirstRankIsBlamed checks that of two ranks the one that failed first is named, in whatever order they end; but a
// rank that was started again since has a failure of its own.
func TestFirstRankIsBlamed(t *testing.T) {
	for _, c := range []struct {
		name   string
		ends   [2]int // ranks, in the order in which they end
		again  bool   // rank 0 begins only after rank 1 has failed and ended
		world  int
		blamed string
	}{
		{"rank 1 ends first", [2]int{1, 0}, false, 2, "rank1.py:1"},
		{"rank 1 ends last", [2]int{0, 1}, false, 2, "rank1.py:1"},
		{"started again", [2]int{1, 0}, true, 2, "rank0.py:1"},
		{"two that train alone", [2]int{1, 0}, false, 1, "rank0.py:1"},
	} {
		b := &books{}
		l := begun(t, b, Armed)
		ranks := [2]*client{}
		begin := func(rank int) {
			ranks[rank] = dial(t, l)
			ranks[rank].send(helloLine(rank, c.world))
			ranks[rank].hears()
			ranks[rank].send(fmt.Sprintf(`{"type":"step","step":1,"allocated":%d}`, rank))
			ranks[rank].send(helloLine(rank, c.world)) // once it is answered, the step has been read
			ranks[rank].hears()
		}
		fail := func(rank int) {
			ranks[rank].send(failure("refused", 2, 40, 40, fmt.Sprintf(`,"where":"rank%d.py:1"`, rank)))
			ranks[rank].hears()
		}
		end := func(rank int) {
			l.mu.Lock()
			open := len(l.talks)
			l.mu.Unlock()
			ranks[rank].send(`{"type":"bye"}`)
			for left := open; left == open; runtime.Gosched() {
				l.mu.Lock()
				left = len(l.talks)
				l.mu.Unlock()
			}
		}
		begin(1)
		if !c.again {
			begin(0)
			fail(1)
			fail(0)
			end(c.ends[0])
			end(c.ends[1])
		} else {
			fail(1)
			end(1)
			begin(0)
			fail(0)
			end(0)
		}
		if got := ended(t, l); got.Where != c.blamed {
			t.Errorf("%s: %s", c.name, got.Where)
		}
		for _, s := range b.steps {
			if known := s.World == 2 && s.Rank == int(s.Memory.Allocated); known != (c.world == 2) {
				t.Errorf("%s: %+v", c.name, s)
			}
		}
	}
}

// TestSmallestLimitIsKept checks that of several ranks the smallest limit is kept: the next attempt begins with it on
// all of them.
func TestSmallestLimitIsKept(t *testing.T) {
	b := &books{pieces: 12}
	l := begun(t, b, Armed)
	ranks := []*client{dial(t, l), dial(t, l)}
	for rank, c := range ranks {
		c.send(helloLine(rank, 2))
		c.hears()
	}
	for i, s := range []struct{ rank, limit, want int }{{0, 0, 0}, {1, 8, 8}, {0, 6, 6}, {1, 4, 4}, {0, 7, 4}, {1, 0, 7}, {0, 0, 0}} {
		c := ranks[s.rank]
		c.send(fmt.Sprintf(`{"type":"step","step":%d,"limit":%d}`, i+1, s.limit))
		c.send(helloLine(s.rank, 2)) // once it is answered, the step has been read
		c.hears()
		if kept := b.kept(); kept != s.want {
			t.Errorf("rank %d reports %d: kept %d, want %d", s.rank, s.limit, kept, s.want)
		}
	}
	for _, c := range ranks {
		c.send(`{"type":"bye"}`)
	}
	ended(t, l)
}

// TestMemoryOfTheHostIsBounded checks by which variable a process learns how much of the host's
// memory it may use, and that nothing is set if nothing was given.
func TestMemoryOfTheHostIsBounded(t *testing.T) {
	for want, spill := range map[string]*memory.Bytes{"": nil, "HEADROOM_SPILL=off": new(memory.Bytes), "HEADROOM_SPILL=1610612736": new(1536 * memory.MiB)} {
		l, err := Begin(Options{Journal: &books{}, Spill: spill, temp: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		env := l.Env([]string{"A=b"})
		ended(t, l)
		at := slices.IndexFunc(env, func(entry string) bool { return strings.HasPrefix(entry, "HEADROOM_SPILL=") })
		if want == "" && at >= 0 || want != "" && (at < 0 || env[at] != want) {
			t.Errorf("%q, want %q", env, want)
		}
	}
}

// TestSnapshotIsWrittenOnRequest checks by which variable a process learns where to write a snapshot.
func TestSnapshotIsWrittenOnRequest(t *testing.T) {
	for _, path := range []string{"", "/runs/a/snapshot.pickle"} {
		l, err := Begin(Options{Journal: &books{}, Snapshot: path, temp: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		env := l.Env(nil)
		ended(t, l)
		if slices.Contains(env, "HEADROOM_SNAPSHOT="+path) != (path != "") {
			t.Errorf("%q", env)
		}
	}
}

// TestReasonOfARefusal checks that the kind of a reason is recorded.
func TestReasonOfARefusal(t *testing.T) {
	b := &books{}
	l := begun(t, b, Armed)
	c := dial(t, l)
	c.send(helloLine(0, 1))
	c.send(failure("refused", 1, 8, 8, `,"why":"BatchNorm","code":"batchnorm"`))
	c.send(`{"type":"bye"}`)
	ended(t, l)
	at := slices.IndexFunc(b.entries, func(e runs.Entry) bool { return e.Kind == runs.KindRefused })
	if at < 0 || *b.entries[at].Refusal != (runs.Refusal{Code: "batchnorm", Why: "BatchNorm"}) {
		t.Errorf("%+v", b.entries)
	}
}

// TestNumbersThatAreNone checks that the size of a dimension is not shown as a number of rows if
// the process does not say that it is one.
func TestNumbersThatAreNone(t *testing.T) {
	b := &books{}
	l := begun(t, b, Armed)
	c := dial(t, l)
	c.send(helloLine(0, 1))
	c.hears()
	c.send(oom(7, 28301, 28301, ""))
	c.send(`{"type":"survived","way":"call","why":"nothing can be cut"}`)
	c.send(`{"type":"bye"}`)
	ended(t, l)
	want := "out of memory in forward: 2 GiB asked for, 1 GiB free of 24 GiB, 22 GiB allocated, 23 GiB reserved (train.py:31); " +
		"survived in place: the same call again (nothing can be cut)"
	if got := b.texts(runs.KindSurvived); len(got) != 1 || got[0] != want {
		t.Errorf("%q", got)
	}
	at := slices.IndexFunc(b.entries, func(e runs.Entry) bool { return e.Kind == runs.KindSurvived })
	if v := b.entries[at].Verdict; v == nil || !strings.HasPrefix(v.Why, "the call needs ") {
		t.Errorf("%+v", v)
	}
}

// TestMemoryBesideATrial checks that what other processes hold of a GPU does not count as being beside a trial's memory, as it need
// not be there on another GPU; and that a number which cannot be true is left out.
func TestMemoryBesideATrial(t *testing.T) {
	for text, want := range map[string]memory.Bytes{"5000": 3000, "1000": 0, "9223372036854775807": 0} {
		l := begun(t, &books{}, Find)
		l.o.Look = func(uuid string, pid int, reserved memory.Bytes) *memory.Seen {
			if uuid != "a" || pid != os.Getpid() || reserved != 7 {
				t.Errorf("asked for %s, %d, %d", uuid, pid, reserved)
			}
			return &memory.Seen{Others: []memory.Share{{Bytes: 1500}, {Bytes: 500}, {Bytes: -1}}}
		}
		c := dial(t, l)
		c.send(helloLine(0, 1))
		c.hears()
		c.send(`{"type":"ready","rows":8,"device":"gpu","uuid":"a","reserved":7,"beside":` + text + `}`)
		if trials := <-l.Trials(); trials.Beside != want {
			t.Errorf("%s: %d is beside, want %d", text, trials.Beside, want)
		}
		c.send(`{"type":"bye"}`)
		ended(t, l)
	}
}

// TestEndAfterAFailure checks that End returns a failure, with its numbers, if the process
// did not recover from it, and that it returns no other failure.
func TestEndAfterAFailure(t *testing.T) {
	refused := failure("refused", 0, 8, 8, `,"why":"in-batch negatives"`)
	mixed := strings.Replace(refused, `"why"`, `"mixed":true,"why"`, 1)
	for name, c := range map[string]struct {
		says []string
		want bool
	}{
		"dies of it":             {[]string{oom(1, 8, 8, "")}, true},
		"refused":                {[]string{refused}, true},
		"refused as mixed":       {[]string{mixed}, true},
		"mixed, and continues":   {[]string{mixed, `{"type":"step","step":1}`}, false},
		"refused, and continues": {[]string{refused, `{"type":"step","step":1}`}, false},
		"survived":               {[]string{oom(1, 8, 8, ""), `{"type":"survived"}`}, false},
		"survived, then it ends": {[]string{oom(1, 8, 8, ""), `{"type":"step","step":1}`, `{"type":"bye"}`}, false},
		"survived, then refused": {[]string{oom(1, 8, 8, ""), `{"type":"step","step":1}`, refused}, true},
		"reported, then refused": {[]string{oom(1, 8, 8, ""), refused, `{"type":"bye"}`}, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := &books{}
			l := begun(t, b, Armed)
			client := dial(t, l)
			client.send(helloLine(0, 1))
			for _, line := range c.says {
				client.send(line)
			}
			_ = client.conn.Close()
			seen := ended(t, l)
			if got := seen.OOM != nil; got != c.want {
				t.Errorf("%+v\n%+v", seen, b.entries)
			}
			if c.want && (seen.Where != "train.py:31" || seen.OOM.Stats.Capacity != 24*gib) {
				t.Errorf("%+v in %q", seen.OOM, seen.Where)
			}
			want := "" // and it stays known after the process has completed a step
			if slices.Contains(c.says, mixed) {
				want = "in-batch negatives"
			}
			if at := slices.IndexFunc(b.entries, func(e runs.Entry) bool { return e.Mixed != "" }); seen.Mixed != want || (at >= 0) != (want != "") {
				t.Errorf("mixed: %q, want %q\n%+v", seen.Mixed, want, b.entries)
			}
			if n := len(b.texts(runs.KindRefused)); n != strings.Count(strings.Join(c.says, ""), "refused") {
				t.Errorf("%d were refused", n)
			}
		})
	}
}

// TestRefusalIsHeard checks that every refusal that a process reports is answered with
// heard, even if it is not worth a journal entry of its own.
func TestRefusalIsHeard(t *testing.T) {
	b := &books{}
	l := begun(t, b, Armed)
	c := dial(t, l)
	c.send(helloLine(0, 1))
	c.hears()
	for id := 8; id < 10; id++ { // the second refusal is not worth an entry
		c.send(failure("refused", id, 8, 8, `,"why":"in-batch negatives"`))
		if a := c.hears(); a.Type != "heard" || a.ID != int64(id) {
			t.Errorf("%+v", a)
		}
	}
	c.send(`{"type":"bye"}`)
	ended(t, l)
	if told := b.texts(runs.KindRefused); len(told) != 1 {
		t.Errorf("%q", told)
	}
}

// TestCauseOfAFailure checks that the entry of a failure names its cause if that is not the batch,
// and that a failure of the CPU's allocator, which reports only the size of the request, has one, too.
func TestCauseOfAFailure(t *testing.T) {
	b := &books{}
	l := begun(t, b, Armed)
	c := dial(t, l)
	c.send(helloLine(0, 1))
	held := 4 * gib
	for step := 1; step <= 40; step++ {
		held += gib / 2
		c.send(fmt.Sprintf(`{"type":"step","step":%d,"allocated":%d,"reserved":%d,"peak":%d,"free":%d,"capacity":%d}`, 10*step, held, held, held, 24*gib-held, 24*gib))
	}
	c.send(oom(7, 40, 40, ""))
	c.send(`{"type":"survived","way":"pieces","rows":40,"pieces":4}`)
	c.send(`{"type":"bye"}`)
	cpu := dial(t, l)
	cpu.send(helloLine(0, 1))
	cpu.send(fmt.Sprintf(`{"type":"oom","rows":16,"requested":%d,"phase":"backward"}`, 3*gib))
	cpu.send(`{"type":"survived","way":"pieces","rows":16,"pieces":2}`)
	cpu.send(`{"type":"bye"}`)
	spike := dial(t, l)
	spike.send(helloLine(0, 1))
	for step := range memory.SpikeSteps {
		spike.send(fmt.Sprintf(`{"type":"step","step":%d,"rows":40,"pieces":1,"allocated":%d,"peak":%d,"free":%d,"capacity":%d}`, step+1, 4*gib, 5*gib, 19*gib, 24*gib))
	}
	spike.send(oom(9, 40, 40, ""))
	spike.send(`{"type":"survived","way":"pieces","rows":40,"pieces":8}`)
	spike.send(`{"type":"bye"}`)
	ended(t, l)
	var causes []memory.Cause
	for _, e := range b.entries {
		if e.Kind == runs.KindSurvived {
			causes = append(causes, e.Verdict.Cause)
		}
	}
	told := b.texts(runs.KindSurvived)
	slices.Sort(causes) // the processes are heard in any order
	slices.Sort(told)
	if !slices.Equal(causes, []memory.Cause{memory.Batch, memory.Leak, memory.Spike}) ||
		!strings.Contains(told[1], "survived in place: 40 rows in 4 pieces; memory held between steps rose by ") || !strings.HasSuffix(told[1], ", 51.2 MiB per step") {
		t.Errorf("%v: %q", causes, told)
	}
}

// TestStrangersAreNotAdmitted checks the rule by which a connection is refused.
// Outside this test, the kernel reports which user has connected.
func TestStrangersAreNotAdmitted(t *testing.T) {
	for _, c := range []struct {
		uid, own int
		want     bool
	}{{1000, 1000, true}, {0, 0, true}, {1001, 1000, false}, {0, 1000, false}, {1000, 0, false}} {
		if admitted(c.uid, c.own) != c.want {
			t.Errorf("uid %d at %d: %v", c.uid, c.own, !c.want)
		}
	}
}

// TestNobodyIsKeptWaiting has a process send more notes than headroom records, and
// lines that are not messages, and checks that headroom still reads everything.
func TestNobodyIsKeptWaiting(t *testing.T) {
	b := &books{}
	l := begun(t, b, Armed)
	c := dial(t, l)
	c.send(`{"type":"step"}`) // before hello
	c.send(`nonsense`)
	c.send(helloLine(0, 1))
	c.hears()
	c.send(`{"type":"step","rows":"many"}`)
	c.send(`{"type":"tomorrow","rows":3}`)
	c.send(`{"type":"note","level":"warning","text":"look at this"}`)
	for range 3 * notesMost {
		c.send(`{"type":"note","text":"again"}`)
	}
	c.send(`{"type":"bye"}`)
	if ended(t, l); len(b.entries) != notesMost+1 || len(b.texts(runs.KindWarning)) != 1 {
		t.Errorf("%d entries, warnings %q", len(b.entries), b.texts(runs.KindWarning))
	}
}

// TestLongLineEndsATalk checks that headroom ends the connection when a line is too long, so that a
// process cannot make headroom hold more in memory.
func TestLongLineEndsATalk(t *testing.T) {
	b := &books{}
	l := begun(t, b, Armed)
	c := dial(t, l)
	c.send(helloLine(0, 1))
	c.hears()
	_, _ = c.conn.Write([]byte(strings.Repeat("x", 2*lineMost)))
	if n, err := c.conn.Read(make([]byte, 1)); err == nil {
		t.Errorf("%d bytes were answered", n)
	}
	ended(t, l)
}

// TestOtherProtocolIsLeftAlone checks that a package that speaks another version of the protocol
// gets no answer.
func TestOtherProtocolIsLeftAlone(t *testing.T) {
	b := &books{}
	l := begun(t, b, Armed)
	c := dial(t, l)
	c.send(`{"type":"hello","v":99,"headroom":"9.9"}`)
	if n, err := c.conn.Read(make([]byte, 1)); err == nil {
		t.Errorf("%d bytes were answered", n)
	}
	if seen := ended(t, l); seen.Attached || len(b.texts(runs.KindWorker)) != 1 {
		t.Errorf("%+v, %+v", seen, b.entries)
	}
}

// TestWatchingIsSaid checks that headroom records at the start that a process will only
// watch, and that it warns the user of this if the mode is Armed, but not if it is
// Observe.
func TestWatchingIsSaid(t *testing.T) {
	for mode, warnings := range map[Mode]int{Armed: 1, Observe: 0} {
		b := &books{}
		l := begun(t, b, mode)
		c := dial(t, l)
		c.send(strings.Replace(helloLine(0, 1), `"mode"`, `"why":"the worker has not been tested with PyTorch 9.9","mode"`, 1))
		c.hears()
		c.send(`{"type":"bye"}`)
		ended(t, l)
		said := b.texts(runs.KindWorker)
		if len(said) != 1 || !strings.Contains(said[0], "only watching: the worker has not been tested with PyTorch 9.9") || len(b.texts(runs.KindWarning)) != warnings {
			t.Errorf("%s: %q, %q", mode, said, b.texts(runs.KindWarning))
		}
	}
}

// TestLastWordsAreHeard checks that headroom reads the messages that a process sent just
// before it ended, even if headroom had not accepted the process's connection by then.
func TestLastWordsAreHeard(t *testing.T) {
	for range 50 {
		b := &books{}
		l := begun(t, b, Armed)
		for range 5 {
			conn, err := net.Dial("unix", l.Socket())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Write([]byte(helloLine(0, 1) + "\n" + `{"type":"note","text":"farewell"}` + "\n")); err != nil {
				t.Fatal(err)
			}
			_ = conn.Close()
		}
		if seen := ended(t, l); !seen.Attached || len(b.texts(runs.KindWorker)) != 6 {
			t.Fatalf("%+v, %q", seen, b.texts(runs.KindWorker))
		}
	}
}

// FuzzServer sends arbitrary bytes to an attempt, each time from a new process that has said hello. It
// checks that the attempt neither ends nor hangs, and that its answers are valid.
func FuzzServer(f *testing.F) {
	for _, text := range []string{helloLine(0, 1), oom(1, 8, 8, ""), oom(1, 8, 4, ""), `{"type":"step","rows":-1,"pieces":99999999999}`,
		`{"type":"tomorrow","rows":4}`, `{"type":"refused"}`, "\x00\xff", `{"type":"oom","rows":0,"requested":-5,"phase":"update"}`,
		`{"type":"oom","rows":1,"micro":1,"requested":9,"capacity":1}` + "\n" + `{"type":"survived","way":"x","rows":-1}`, `{"type":"step","limit":-1}`} {
		f.Add([]byte(text))
	}
	l := begun(f, &books{}, Armed)
	f.Cleanup(func() { ended(f, l) })
	f.Fuzz(func(t *testing.T, text []byte) {
		c := dial(t, l)
		c.send(helloLine(0, 1))
		_, _ = c.conn.Write(append(text, '\n')) // the connection may have been closed
		if unix, ok := c.conn.(*net.UnixConn); ok {
			_ = unix.CloseWrite()
		}
		for {
			var a answer
			if c.lines.Decode(&a) != nil {
				return
			}
			if a.Type == "" || a.Limit < 0 || a.Limit > rowsMost {
				t.Errorf("%+v", a)
			}
		}
	})
}

// BenchmarkAttempt measures the time that an attempt costs a command whose processes
// send no messages.
func BenchmarkAttempt(b *testing.B) {
	temp := b.TempDir()
	for b.Loop() {
		l, err := Begin(Options{Journal: &books{}, temp: temp})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := l.End(); err != nil {
			b.Fatal(err)
		}
	}
}

// TestFirstStepIsLookedAt checks that only the first report about a first step counts,
// whether it says what was found or why the step cannot be checked.
func TestFirstStepIsLookedAt(t *testing.T) {
	looked := func(l *Attempt) bool {
		select {
		case <-l.Checked():
			return true
		default:
			return false
		}
	}
	for _, c := range []struct {
		name  string
		lines []string
		want  Ended
	}{
		{"found", []string{helloLine(0, 1), `{"type":"check","found":[{"where":"a.py:3","rows":-4,"error":0.5},{"why":"because"}]}`, `{"type":"check","found":[]}`},
			Ended{Checked: []Checked{{Where: "a.py:3", Error: 0.5}, {Why: "because"}}}},
		{"too much", []string{helloLine(0, 1), `{"type":"check","found":[` + strings.Repeat(`{},`, 2*foundMost) + `{}]}`}, Ended{Checked: make([]Checked, foundMost)}},
		{"cannot", []string{strings.Replace(helloLine(0, 2), `"type"`, `"why":"several ranks","type"`, 1)}, Ended{Unchecked: "several ranks"}},
		{"nobody", []string{`{"type":"check","found":[{}]}`}, Ended{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := begun(t, &books{}, Check)
			client := dial(t, l)
			for _, line := range c.lines {
				client.send(line)
			}
			client.send(`{"type":"bye"}`)
			seen := ended(t, l)
			if !reflect.DeepEqual(seen.Checked, c.want.Checked) || seen.Unchecked != c.want.Unchecked || looked(l) != (len(seen.Checked) > 0 || seen.Unchecked != "") {
				t.Errorf("%+v, want %+v", seen, c.want)
			}
		})
	}
}

// TestWhoGoesOnTraining checks that an attempt names the processes that have taken steps and are still
// connected at its end, and no others.
func TestWhoGoesOnTraining(t *testing.T) {
	for _, c := range []struct {
		name  string
		lines []string
		want  []int
	}{
		{"it trains, and goes on", []string{`{"type":"step","step":1,"rows":4,"pieces":1}`}, []int{os.Getpid()}},
		{"it has taken no step", nil, nil},
		{"it trained, and has ended", []string{`{"type":"step","step":1,"rows":4,"pieces":1}`, `{"type":"bye"}`}, nil},
	} {
		b := &books{}
		l := begun(t, b, Armed)
		p := dial(t, l)
		p.send(helloLine(0, 1))
		p.hears()
		for _, line := range c.lines {
			p.send(line)
		}
		if seen := ended(t, l); !slices.Equal(seen.Training, c.want) {
			t.Errorf("%s: %v, want %v", c.name, seen.Training, c.want)
		}
	}
}

// TestBatchesThatCannotBe checks that what a process tells of its loaders is cut to what can be.
func TestBatchesThatCannotBe(t *testing.T) {
	one := `{"tensor":"` + strings.Repeat("x", 2*nameMost) + `","dim":-1,"least":3,"most":1000000000,"first":5000000000,"used":7,"each":-8}`
	m, err := parse([]byte(`{"type":"ready","batches":{"look":-2,"read":8,"tensors":true,"lengths":[` + strings.Repeat(one+",", 8) + one + `]}}`))
	if err != nil {
		t.Fatal(err)
	}
	want := Length{Tensor: strings.Repeat("x", nameMost), Least: 3, Most: 1e9, Used: 7}
	if b := m.Batches; b.Look != 0 || b.Read != 8 || !b.Tensors || len(b.Lengths) != lengthsMost || b.Lengths[3] != want {
		t.Errorf("%+v", b)
	}
}
