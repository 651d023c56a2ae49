package report

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"headroom/memory"
	"headroom/recovery"
	"headroom/report/chart"
	"headroom/runs"
)

// survivedInside returns what the worker of a wrapped command reports about a failure.
func survivedInside() runs.Entry {
	verdict := memory.Verdict{Cause: memory.Batch, Why: "1 GiB asked for at micro-batch 40 in forward, 700 MiB free"}
	return runs.Entry{
		Kind: runs.KindSurvived, OOM: &memory.OutOfMemoryError{Requested: memory.GiB, Phase: memory.PhaseForward, Micro: 40}, Verdict: &verdict, Seconds: 2,
		InPlace: &runs.InPlace{Way: runs.WayPieces, Rows: 40, Pieces: 4}, Where: "train.py:31",
	}.Told()
}

// TestSurvivedWithoutAVerdict checks the row of a failure in evaluation, and of one that an earlier
// version has recorded.
func TestSurvivedWithoutAVerdict(t *testing.T) {
	d := newDiary("train-run", 0)
	d.Command = "python train.py"
	d.begin()
	old := runs.Entry{Kind: runs.KindSurvived, OOM: &memory.OutOfMemoryError{Requested: memory.GiB, Phase: memory.PhaseEval}, Decision: &recovery.Decision{},
		Text: "out of memory in eval: 1 GiB asked for (train.py:31); survived in place: 40 rows in 4 pieces"}
	e := old
	e.InPlace, e.Where = &runs.InPlace{Way: runs.WayPieces, Rows: 40, Pieces: 4}, "train.py:31"
	d.entry(e)
	d.entry(old)
	rows := New(d.Input).Ledger
	if e.Told().Text != old.Text || rows[1].Why != old.Text || rows[1].Remedy != "survived in place" || rows[1].Reason != "" {
		t.Errorf("%q, %+v", e.Told().Text, rows)
	}
	if len(rows) != 2 || rows[0].Why != "in eval: 1 GiB asked for (train.py:31)" || rows[0].Remedy != "survived in place" || rows[0].Reason != "40 rows in 4 pieces" {
		t.Errorf("%+v", rows)
	}
}

// TestWrappedCommand checks that the report of a wrapped command says what ran, which
// line ran out of memory and in how many pieces the work was then run, and that it says
// nothing about what is not known.
func TestWrappedCommand(t *testing.T) {
	d := newDiary("train-run", 0)
	d.Command = `python train.py --note "two words"`
	d.begin()
	d.entry(survivedInside())
	d.entry(runs.Entry{Kind: runs.KindDone, Text: "done, 1 out-of-memory failure survived"})
	r := New(d.Input)
	if cards := r.Cards(); len(cards) != 2 || cards[0].Question != "Effective batch" || cards[1].Question != "Out of memory" {
		t.Errorf("%+v", cards)
	}
	var markdown, page bytes.Buffer
	if err := r.Markdown(&markdown, func(p chart.Picture) string { return p.Name }); err != nil {
		t.Fatal(err)
	}
	if err := r.HTML(&page); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"# train-run: finished\n", "Ran: python train.py --note \"two words\"", "| Effective batch | **kept** | steps that ran out of memory still gave the result of the whole batch |",
		"at micro-batch 40 in forward: 1 GiB asked for (train.py:31) |",
		"**survived in place**. 40 rows in 4 pieces |", "| – | **out of memory: batch**"} {
		if !strings.Contains(markdown.String(), want) {
			t.Errorf("no %q in\n%s", want, markdown.String())
		}
	}
	for _, unknown := range []string{"not recorded", "0 written", "![", "batch.micro", "0 steps"} {
		if strings.Contains(markdown.String(), unknown) {
			t.Errorf("%q in\n%s", unknown, markdown.String())
		}
	}
	if text := page.String(); !strings.Contains(text, "<code>python train.py --note &#34;two words&#34;</code>") || strings.Contains(text, "<figure") {
		t.Error("the page has no command, or pictures of nothing")
	}
}

// TestWrappedBatch checks what the report says about a command's effective batch.
func TestWrappedBatch(t *testing.T) {
	smaller := func(d *diary) {
		d.entry(runs.Entry{Kind: runs.KindOOM, Text: "out of memory", OOM: &memory.OutOfMemoryError{Micro: 64}, Verdict: &memory.Verdict{Cause: memory.Batch, Why: "too large"}})
		smaller := recovery.Plan{Effective: effective, World: 1, Micro: 32}
		d.entry(runs.Entry{Kind: runs.KindDecision, Decision: &recovery.Decision{Remedy: recovery.Shrink, Plan: smaller, Reason: "half"}})
	}
	for name, c := range map[string]struct {
		happens func(*diary)
		want    string
	}{
		"nothing":            {func(*diary) {}, "as the command sets it, no plan was changed"},
		"survived":           {func(d *diary) { d.entry(survivedInside()) }, "kept, steps that ran out of memory still gave the result of the whole batch"},
		"refused, and ended": {func(d *diary) { d.entry(runs.Entry{Kind: runs.KindRefused, Text: "left to the command"}) }, "as the command sets it, no plan was changed"},
		"relaunched": {func(d *diary) {
			smaller(d)
			d.begin()
			d.entry(runs.Entry{Kind: runs.KindDone, Text: "done"})
		}, "kept, accumulation made up for a smaller micro-batch"},
		"it could not be relaunched": {func(d *diary) {
			smaller(d)
			d.entry(runs.Entry{Kind: runs.KindDecision, Decision: &recovery.Decision{Remedy: recovery.Stop, Reason: "it needs to be known"}})
			d.entry(runs.Entry{Kind: runs.KindFailed, Text: "it needs to be known", Unproven: []string{"it is so", "it stays so"}})
		}, "as the command sets it, no plan was changed"},
		"nothing fitted, with a worker": {func(d *diary) {
			d.entry(runs.Entry{Kind: runs.KindRefused, Text: "left to the command", InStep: 1})
			smaller(d)
			d.begin()
			smaller(d)
			d.entry(runs.Entry{Kind: runs.KindDecision, Decision: &recovery.Decision{Remedy: recovery.Stop, Reason: "nothing is left"}})
			d.entry(runs.Entry{Kind: runs.KindFailed, Text: "nothing is left"})
		}, "no step was completed, memory ran out in the first one"},
		"nothing fitted, without a worker": {func(d *diary) {
			smaller(d)
			d.begin()
			smaller(d)
			d.entry(runs.Entry{Kind: runs.KindDecision, Decision: &recovery.Decision{Remedy: recovery.Stop, Reason: "nothing is left"}})
			d.entry(runs.Entry{Kind: runs.KindFailed, Text: "nothing is left"})
		}, "no step was seen, the micro-batch was made smaller, and no step or checkpoint was seen after that"},
		"nothing fitted after a checkpoint": {func(d *diary) {
			d.entry(runs.Entry{Kind: runs.KindCheckpoint, Text: "checkpoint"})
			smaller(d)
			d.begin()
			d.entry(runs.Entry{Kind: runs.KindFailed, Text: "nothing is left"})
		}, "no step was seen, the micro-batch was made smaller, and no step or checkpoint was seen after that"},
		"relaunched, and a checkpoint seen": {func(d *diary) {
			smaller(d)
			d.begin()
			d.entry(runs.Entry{Kind: runs.KindCheckpoint, Text: "checkpoint"})
		}, "kept, accumulation made up for a smaller micro-batch"},
		"relaunched, and a step seen": {func(d *diary) {
			smaller(d)
			d.begin()
			d.Seen = []runs.ProcessStep{{Time: d.now, Attempt: 2, PID: 7, Made: 1}}
		}, "kept, accumulation made up for a smaller micro-batch"},
	} {
		d := newDiary("train-run", 0)
		d.Command, d.Resumable = "python train.py", true
		d.begin()
		c.happens(d)
		r := New(d.Input)
		card := r.Cards()[0]
		if got := card.Answer + ", " + card.Note; got != c.want {
			t.Errorf("%s: %s", name, got)
		}
		if advised := slices.Contains(r.Advice, "micro-batch 32 would have fitted from the start: pass it to the command, with accumulation 2 to keep the effective batch"); advised != (name == "relaunched") {
			t.Errorf("%s: advised %q", name, r.Advice)
		}
		if name == "it could not be relaunched" && (!r.Failures.Fatal || r.Advice[0] != "run headroom resume --trust train-run if it is so, and it stays so") {
			t.Errorf("%+v, advised %q", r.Failures, r.Advice)
		}
	}
}

// TestReadsTheCommand checks that Read finds the command of a wrapped run, and none for any other run.
func TestReadsTheCommand(t *testing.T) {
	for text, want := range map[string]string{
		"command:\n    - python\n    - train.py\n    - two words\n    - \"\"\ndir: /home/me\n": `python train.py 'two words' ''`,
		"command: [sh, -c, \"echo $HOME it's\"]\n":                                             `sh -c 'echo $HOME it'\''s'`,
		"train:\n    steps: 3\n": "",
		"":                       "",
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "run.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if in, err := Read(dir); err != nil || in.Command != want || len(in.Problems) != 0 {
			t.Errorf("%q: %q, %v, %v", text, in.Command, err, in.Problems)
		}
	}
}

// TestWrappedCommandsSteps checks that cards and pictures show the steps that a worker
// saw in a command, together with the command's failures. Processes that did not train
// are left out.
func TestWrappedCommandsSteps(t *testing.T) {
	d := newDiary("train-run", 0)
	d.Command = "torchrun train.py"
	d.begin()
	begin := d.now
	of := func(attempt, pid, made int, at time.Duration, pieces int) runs.ProcessStep {
		m := memory.Stats{Capacity: 24 * memory.GiB, Allocated: 5 * memory.GiB, Reserved: 15 * memory.GiB, Peak: 12*memory.GiB + memory.Bytes(made)}
		return runs.ProcessStep{Time: begin.Add(at), Attempt: attempt, PID: pid, Made: made, Rows: 40, Pieces: pieces, Seconds: 0.25, Memory: m}
	}
	for i := range 1000 {
		d.Seen = append(d.Seen, of(1, 7, 10*i+1, time.Duration(i)*time.Second, 1+2*(i/500)))
	}
	d.Seen = append(d.Seen, of(1, 8, 1, time.Second, 1)) // such as a step of the launcher's own process
	for i := range 100 {
		d.Seen = append(d.Seen, of(2, 7, i+1, time.Duration(1200+i)*time.Second, 3))
	}
	d.Seen[400].Forward, d.Seen[400].Backward = 11*memory.GiB, 6*memory.GiB
	d.Seen[500].Forward = 10 * memory.GiB
	if got := phases(d.Seen[:450]); got != "11 GiB after forward, 6 GiB after backward, 5 GiB between steps" {
		t.Errorf("phases %q", got)
	}
	e := survivedInside()
	e.Time = begin.Add(600 * time.Second)
	d.entry(e)
	r := New(d.Input)
	questions := map[string]string{}
	for _, c := range r.Cards() {
		questions[c.Question] = c.Answer + "; " + c.Note
	}
	if questions["Steps"] != "10,091 optimizer steps, 0.25 s each on average; in 2 processes; repeated steps are counted each time" ||
		!strings.HasPrefix(questions["Memory"], "peak 12 GiB of 24 GiB; headroom 50") || !strings.HasSuffix(questions["Memory"], "; 10 GiB after forward, 5 GiB between steps") {
		t.Errorf("%q", questions)
	}
	var names []string
	for _, p := range r.draw() {
		names = append(names, p.Name)
		if text := svg(t, p); !strings.Contains(text, "minutes since the first step") || !strings.Contains(text, `class="mark"`) || strings.Contains(p.Alt, "nothing") {
			t.Errorf("%s: %s\n%s", p.Name, p.Alt, text)
		}
	}
	if !slices.Equal(names, []string{"memory", "throughput", "pieces"}) {
		t.Errorf("%q", names)
	}
	for unit, stretch := range map[string]time.Duration{"seconds": 20, "minutes": 1, "hours": 0} {
		short := New(d.Input)
		for i := range short.seen {
			at := short.seen[i].Time.Sub(begin)
			if short.seen[i].Time = begin.Add(10 * at); stretch > 0 {
				short.seen[i].Time = begin.Add(at / stretch)
			}
		}
		if across := commandCharts(short)[0].Across; across != unit+" since the first step" {
			t.Errorf("not over %s", unit)
		}
	}
	d.Seen[500].Host, d.Seen[500].Lost, d.Seen[len(d.Seen)-1].Lost = 3*memory.GiB, 40, 2 // of different attempts
	for i := 501; i < 1000; i++ {
		d.Seen[i].Lost = 40
	}
	r = New(d.Input)
	if note := r.memoryCard().Note; !strings.Contains(note, "; up to 3 GiB of the host's memory was used in place of the GPU's, which took 42 s;") {
		t.Errorf("%q", note)
	}
	if picture := r.draw()[0]; !strings.Contains(picture.Alt, "3 GiB of the host's memory") || !strings.Contains(svg(t, picture), "on the host") {
		t.Errorf("%q", picture.Alt)
	}
	for i := range d.Seen { // on the CPU, never in pieces
		d.Seen[i].Memory, d.Seen[i].Pieces = memory.Stats{}, 0
	}
	r = New(d.Input)
	if pictures := r.draw(); len(pictures) != 1 || pictures[0].Name != "throughput" {
		t.Errorf("%+v", pictures)
	}
	if _, known := questions["Memory"]; !known || slices.ContainsFunc(r.Cards(), func(c Card) bool { return c.Question == "Memory" }) {
		t.Error("there is a card on memory that is not known")
	}
}
