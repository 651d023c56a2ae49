package wrap

import (
	"context"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"headroom/harness"
	"headroom/memory"
	"headroom/recovery"
	"headroom/runs"
	"headroom/wrap/command"
	"headroom/wrap/exits"
)

// TestWhatIsRecordedOfAnAttempt checks what the journal says about an attempt that ran out of
// memory: the time that was lost, the path of the newest checkpoint, and only those
// memory figures that were measured, not the assumed ones.
func TestWhatIsRecordedOfAnAttempt(t *testing.T) {
	began := time.Date(2026, 1, 1, 2, 0, 0, 0, time.UTC)
	ranOut := exits.Outcome{Kind: exits.OutOfMemory, Confidence: exits.Certain, Reasons: []string{"it failed in forward"},
		Evidence: &memory.Evidence{Failure: memory.OutOfMemoryError{Requested: memory.GiB, Phase: memory.PhaseForward}.Assume(4 * memory.GiB)}}
	saved := &checkpoint{Path: "out/step-10.pt", Step: 10, Time: began.Add(40 * time.Second)}
	for _, c := range []struct {
		name    string
		saves   bool
		resumes bool
		recover bool
		lost    float64
	}{
		{"without a checkpoint", false, true, true, 60},
		{"after a checkpoint", true, true, true, 20},
		{"of a command that starts over", true, false, true, 60},
		{"of an unknown command", false, false, false, 0},
	} {
		dir := filepath.Join(t.TempDir(), "run")
		folder, err := runs.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		s, err := harness.Begin(folder, harness.SessionOptions{Plan: recovery.Plan{Effective: 64, World: 1, Micro: 64}})
		if err != nil {
			t.Fatal(err)
		}
		attempts := 0
		try := func(context.Context, beginning) (exits.Outcome, command.Exit, error) {
			if attempts++; attempts == 2 {
				return exits.Outcome{Kind: exits.Done}, command.Exit{Seconds: 5, Began: began.Add(time.Hour)}, nil
			}
			return ranOut, command.Exit{Code: 1, Seconds: 60, Began: began}, nil
		}
		newest := func() (*checkpoint, error) {
			if !c.saves || attempts == 0 {
				return nil, nil
			}
			return saved, nil
		}
		o := &faked{try: try, find: newest, resumes: c.resumes, recovers: c.recover, sleep: harness.Sleep,
			steps: func() int { return -1 }, clears: func(context.Context) string { return "" }, left: func() string { return "" }}
		_, _, _ = o.run(context.Background(), s) // of an unknown command, it fails
		if err := folder.Close(); err != nil {
			t.Fatal(err)
		}
		journal, err := runs.ReadJournal(dir)
		if err != nil {
			t.Fatal(err)
		}
		of := func(k runs.Kind) runs.Entry {
			at := slices.IndexFunc(journal, func(e runs.Entry) bool { return e.Kind == k })
			if at < 0 {
				return runs.Entry{}
			}
			return journal[at]
		}
		if e := of(runs.KindOOM); e.Seconds != c.lost || e.OOM == nil || e.OOM.Stats != (memory.Stats{}) || e.OOM.Requested != memory.GiB {
			t.Errorf("%s: %v s lost, %+v", c.name, e.Seconds, e.OOM)
		}
		if s, err := runs.ReadStatus(dir); err != nil || s.From == saved.Step != (c.saves && c.resumes) {
			t.Errorf("%s: the newest attempt began from step %d, %v", c.name, s.From, err)
		}
		if e := of(runs.KindCheckpoint); (e.Path == saved.Path) != c.saves {
			t.Errorf("%s: checkpoint %+v", c.name, e)
		}
	}
}
