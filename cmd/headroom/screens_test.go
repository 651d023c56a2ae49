package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"headroom/cmd/headroom/ui"
	"headroom/harness"
	"headroom/memory"
	"headroom/recovery"
	"headroom/runs"
	"headroom/wrap"
	"headroom/wrap/command"
)

// nativeScreen prints the output of a run of a configuration. Everything that can happen in such a
// run happens in this one.
func nativeScreen(u *ui.UI) {
	p := ui.Progress{UI: u, Total: 200, Started: u.Now()}
	say := func(kind runs.Kind, text string) {
		e := runs.Entry{Kind: kind, Text: text}
		if kind == runs.KindOOM {
			e.Verdict = &memory.Verdict{Cause: memory.Batch}
			p.Failures = 1
		}
		u.Entry(e)
	}
	say(runs.KindRun, "a run of 200 steps of 32 samples starts")
	say(runs.KindAttempt, "attempt 1 starts from step 0 of 200")
	say(runs.KindPlan, "micro-batch 32 × 1, effective 32")
	say(runs.KindOOM, "step 1: out of memory at micro-batch 32 in forward: 2 MiB asked for, 964 KiB free of 15 MiB, 14 MiB allocated, 14.1 MiB reserved")
	say(runs.KindDecision, "search for the largest micro-batch below 32 that fits")
	say(runs.KindProbe, "micro-batch 21 fits: peak 14.5 MiB")
	say(runs.KindProbe, "micro-batch 21 fits: peak 14.5 MiB")
	say(runs.KindProbe, "micro-batch 22 does not fit: it needs at least 15.1 MiB with 15 MiB available")
	say(runs.KindSearch, "micro-batch 21 is the largest that fits (9 probes, 1.2 s)")
	say(runs.KindDecision, "micro-batch 32 → 16: in 15 MiB, micro-batch 21 is the largest that fits; sizes up to 19 leave at least 8 % of the memory unused; accumulation 1 → 2 keeps the effective batch at 32")
	say(runs.KindRemedy, "emptied the cache: 12.2 MiB given back in 0.9 ms")
	step := runs.StepReport{Step: 120, Samples: 80, Loss: 3.14159, Splits: []int{16, 16}, Seconds: 0.5,
		Memory: memory.Stats{Peak: 3 * memory.GiB, Capacity: 4 * memory.GiB}}
	p.Step(step)
	say(runs.KindCheckpointFailed, "checkpoint of step 150 could not be written: no space left on device; older ones are untouched; make room or fix the disk under runs/gpt before the next one")
	step.Step = 200
	p.Step(step)
	u.Screen.Show("")
	u.ReportWritten("runs/gpt/report.html")
	u.Finished(harness.Result{Steps: 200, AllFailures: 1, Last: step})
}

// wrappedScreen prints what headroom prints about a command that survives a failure in place, is
// started again and gives up.
func wrappedScreen(u *ui.UI) {
	r := &reporter{UI: u}
	for _, e := range []runs.Entry{
		{Kind: runs.KindWarning, Text: "a checkpoint every 500 of 20000 steps (--save_steps): a failure costs up to 500 steps"},
		{Kind: runs.KindSurvived, OOM: &memory.OutOfMemoryError{Requested: 1945 * memory.MiB, Micro: 512, Phase: memory.PhaseForward,
			Stats: memory.Stats{Free: 944 * memory.MiB, Capacity: 18636 * memory.MiB, Allocated: 16998 * memory.MiB, Reserved: 17715 * memory.MiB}},
			Where: "train.py:36", InPlace: &runs.InPlace{Way: runs.WayPieces, Rows: 512, Pieces: 4}},
		{Kind: runs.KindRefused, OOM: &memory.OutOfMemoryError{Requested: memory.GiB}, Text: "out of memory at micro-batch 512 in backward: 1 GiB asked for (train.py:38); left to the command's own code: the graph is kept to be used again (retain_graph)"},
		{Kind: runs.KindExit, Text: "exit status 1 after 3.2 h: out of memory"},
		{Kind: runs.KindOOM, OOM: &memory.OutOfMemoryError{Requested: memory.GiB}, Text: "out of memory in backward: 1 GiB asked for, 0.2 GiB free of 18.2 GiB", Verdict: &memory.Verdict{Cause: memory.Batch}},
		{Kind: runs.KindDecision, Text: "micro-batch 512 → 256; accumulation 1 → 2 keeps the effective batch at 512"},
	} {
		r.Entry(e)
	}
	u.Survived(harness.Result{Failures: 2, InPlace: 1, Plan: recovery.Plan{Effective: 512, World: 1, Micro: 256}})
	u.Failed(&ui.ChildError{Code: 1, Err: errors.New("exit status 1 after 76 s: out of memory: memory held between steps rose by 1.9 GiB over the last 20 steps"),
		Hint: "a warning above names what grows; loss.item() or loss.detach() keeps a value without the graph that made it"})
	u.Failed(&harness.GaveUpError{Decision: recovery.Decision{Reason: "out of memory in step 12, leak: nothing smaller is left to try", Hint: "a smaller model, an optimizer with less state, or a device with more memory"}})
	u.Failed(notASize("free", "much", errors.New("no number")))
	_ = trialFailed(u, command.Line{}, &wrap.TrialError{Micro: 8, Code: 3, Last: "Traceback (most recent call last):\nKeyError: 'train'", Why: "it exited with status 3"})
}

// TestScreens records what the output of runs looks like: on terminals of 80 and 140 columns,
// with and without colours, and in a log.
func TestScreens(t *testing.T) {
	for name, tell := range map[string]func(*ui.UI){"native": nativeScreen, "wrapped": wrappedScreen} {
		var all strings.Builder
		for _, s := range []struct {
			columns     int
			live, color bool
		}{{80, true, true}, {80, true, false}, {140, true, true}, {140, true, false}, {0, false, false}} {
			var out bytes.Buffer
			now := time.Unix(0, 0)
			u := &ui.UI{Out: io.Discard, Now: func() time.Time { now = now.Add(time.Minute); return now }}
			u.Screen = &ui.Screen{Writer: &out, Live: s.live, Color: s.color, Width: func() int { return s.columns }}
			tell(u)
			if s.live {
				fmt.Fprintf(&all, "== %d columns, colours: %t\n", s.columns, s.color)
			} else {
				all.WriteString("== a log\n")
			}
			text := out.String()
			for code, colour := range map[string]string{ui.Red: "<red>", ui.Green: "<green>", ui.Yellow: "<yellow>", ui.Cyan: "<cyan>", "\x1b[0m": "<>", ui.EraseRest: "<erase>", "\r": "\n<back>"} {
				text = strings.ReplaceAll(text, code, colour)
			}
			plain := strings.ReplaceAll(colours.ReplaceAllString(out.String(), ""), ui.EraseRest, "")
			for _, row := range strings.FieldsFunc(plain, func(r rune) bool { return r == '\r' || r == '\n' }) {
				if n := len([]rune(row)); s.live && n > s.columns {
					t.Errorf("%s: %d columns of %d: %s", name, n, s.columns, row)
				}
			}
			all.WriteString(text)
		}
		if golden(t, "screens/"+name+".golden", all.String()) != all.String() {
			t.Errorf("%s looks otherwise by now; look at it, then go test -tags cuda ./cmd/headroom -run TestScreens -update:\n%s", name, all.String())
		}
	}
}
