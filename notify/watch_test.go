package notify

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"headroom/memory"
	"headroom/recovery"
	"headroom/runs"
)

var began = time.Date(2026, 11, 26, 22, 0, 0, 0, time.UTC)

// happened are the entries that tests put into journals, each by a word.
var happened = map[string]runs.Entry{
	"step":        {Kind: runs.KindCheckpoint, Text: "saved"},
	"attempt":     {Kind: runs.KindAttempt, Text: "attempt 2 starts"},
	"done":        {Kind: runs.KindDone, Text: "done: 40 steps"},
	"gave-up":     {Kind: runs.KindFailed, Text: "gave up in step 7", Decision: &recovery.Decision{Remedy: recovery.Stop, Reason: "the model alone does not fit"}},
	"crashed":     {Kind: runs.KindFailed, Text: "exit status 1"},
	"stopped":     {Kind: runs.KindInterrupted, Text: "interrupted"},
	"in-place":    {Kind: runs.KindSurvived, Text: "in pieces", InPlace: &runs.InPlace{Way: runs.WayPieces}},
	"from-host":   {Kind: runs.KindSurvived, Text: "with the host", InPlace: &runs.InPlace{Way: runs.WaySpill}},
	"oom":         {Kind: runs.KindOOM, Text: "out of memory"},
	"smaller":     {Kind: runs.KindDecision, Text: "micro-batch 8", Decision: &recovery.Decision{Remedy: recovery.Shrink}},
	"stop":        {Kind: runs.KindDecision, Text: "nothing is left", Decision: &recovery.Decision{Remedy: recovery.Stop}},
	"gone":        {Kind: runs.KindGone, Text: "the device was lost"},
	"exec":        {Kind: runs.KindDecision, Text: "a new process", Decision: &recovery.Decision{Remedy: recovery.Exec}},
	"warning":     {Kind: runs.KindWarning, Text: "something else"},
	"leaks":       {Kind: runs.KindWarning, Text: "memory runs out in an hour", Leaks: true},
	"holder":      {Kind: runs.KindWarning, Text: "`losses` holds it", Holder: &memory.Holder{Name: "losses"}},
	"held":        {Kind: runs.KindWorker, Text: "`losses` held it", Holder: &memory.Holder{Name: "losses"}},
	"spills":      {Kind: runs.KindWarning, Text: "step 3 uses 2 GiB of the host", Spilled: 2 << 30},
	"not-spilled": {Kind: runs.KindWorker, Text: "3 steps used memory of the host"},
}

// night plays a journal written as words, +15m between two of them lets time pass, and returns what is sent.
func night(t *testing.T, w Watch, journal string) string {
	t.Helper()
	now, sent := began, []string{}
	for _, word := range strings.Fields(journal) {
		if strings.HasPrefix(word, "+") || strings.HasPrefix(word, "-") {
			d, err := time.ParseDuration(word)
			if err != nil {
				t.Fatal(err)
			}
			now = now.Add(d)
			continue
		}
		e, known := happened[word]
		if !known {
			t.Fatal("unknown:", word)
		}
		e.Time = now
		var k Kind
		var text string
		if w, k, text = w.Next(e); k != "" {
			sent = append(sent, fmt.Sprintf("%s(%s)", k, text))
		}
	}
	return strings.Join(sent, " ")
}

func TestWatch(t *testing.T) {
	for _, c := range []struct{ journal, sent string }{
		{"step attempt step warning", ""},
		{"step done", "finished(done: 40 steps)"},
		{"step crashed", "failed(exit status 1)"},
		{"oom stop gave-up", "failed(the model alone does not fit)"},
		{"stopped", "interrupted(interrupted)"},
		{"in-place in-place +1h in-place done", "survived(in pieces) finished(done: 40 steps)"},
		{"oom smaller attempt done", "survived(out of memory; micro-batch 8) finished(done: 40 steps)"},
		{"oom smaller +1h oom smaller", "survived(out of memory; micro-batch 8)"},
		{"smaller gone exec", ""},
		{"oom stop smaller", ""}, // that decision was about something else
		{"leaks holder +14m59s leaks +1s leaks", "leak(memory runs out in an hour) leak(memory runs out in an hour)"},
		{"held holder", "leak(`losses` holds it)"},
		{"not-spilled spills +14m spills +1m spills", "spill(step 3 uses 2 GiB of the host) spill(step 3 uses 2 GiB of the host)"},
		{"from-host", "survived(with the host)"},
		{"in-place from-host", "survived(in pieces) spill(with the host)"},
		{"crashed +5m crashed +5m done", "failed(exit status 1) finished(done: 40 steps)"},
		{"crashed -1h crashed", "failed(exit status 1) failed(exit status 1)"}, // the clock was set back
	} {
		if sent := night(t, Watch{}, c.journal); sent != c.sent {
			t.Errorf("%s:\n got %s\nwant %s", c.journal, sent, c.sent)
		}
	}
}

func TestAfterAnotherProcess(t *testing.T) {
	first := []runs.Entry{happened["in-place"], happened["crashed"]}
	for i := range first {
		first[i].Time = began
	}
	if sent := night(t, After(first), "+14m in-place crashed done"); sent != "finished(done: 40 steps)" {
		t.Error(sent)
	}
	if sent := night(t, After(first), "+15m in-place crashed"); sent != "failed(exit status 1)" {
		t.Error(sent)
	}
}

// TestNeverTooMany checks over random nights that there is no second message of a kind within [Quiet], no second one about
// a survived failure at all, and none that is held back although there was none of its kind for that long.
func TestNeverTooMany(t *testing.T) {
	var words []string
	for word := range happened {
		words = append(words, word)
	}
	rapid.Check(t, func(t *rapid.T) {
		var w Watch
		now, newest := began, map[Kind]time.Time{}
		for range rapid.IntRange(1, 60).Draw(t, "entries") {
			e := happened[rapid.SampledFrom(words).Draw(t, "what")]
			now = now.Add(time.Duration(rapid.IntRange(0, 1200).Draw(t, "seconds")) * time.Second)
			e.Time = now
			would, _ := w.about(e)
			next, k, _ := w.Next(e)
			before, was := newest[k]
			switch {
			case k == "" && would != "" && would != Survived && (newest[would].IsZero() || now.Sub(newest[would]) >= Quiet):
				t.Fatalf("%s was held back", would)
			case k == Survived && was:
				t.Fatal("a second first failure")
			case k != "" && was && now.Sub(before) < Quiet:
				t.Fatalf("%s twice in %v", k, now.Sub(before))
			}
			if w = next; k != "" {
				newest[k] = now
			}
		}
	})
}
