package wrap

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"headroom/harness"
	"headroom/memory"
	"headroom/recovery"
	"headroom/runs"
	"headroom/wrap/command"
)

// TestWhatIsRecordedOfALife checks what the journal says about a life that ran out of
// memory: the time that was lost, the path of the newest checkpoint, and only those
// memory figures that were measured, not the assumed ones.
func TestWhatIsRecordedOfALife(t *testing.T) {
	began := time.Date(2026, 1, 1, 2, 0, 0, 0, time.UTC)
	ranOut := Outcome{Kind: OutOfMemory, Confidence: Certain, Reasons: []string{"it failed in forward"},
		Evidence: &memory.Evidence{Failure: memory.OutOfMemoryError{Requested: memory.GiB, Phase: memory.PhaseForward}.Assume(4 * memory.GiB)}}
	saved := &Saved{Path: "out/step-10.pt", Step: 10, Time: began.Add(40 * time.Second)}
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
		lives := 0
		live := func(context.Context, Beginning) (Outcome, command.Exit, error) {
			if lives++; lives == 2 {
				return Outcome{Kind: Done}, command.Exit{Seconds: 5, Began: began.Add(time.Hour)}, nil
			}
			return ranOut, command.Exit{Code: 1, Seconds: 60, Began: began}, nil
		}
		newest := func() (*Saved, error) {
			if !c.saves || lives == 0 {
				return nil, nil
			}
			return saved, nil
		}
		_, _, _ = Run(context.Background(), s, RunOptions{Live: live, Newest: newest, Resumes: c.resumes, Recover: c.recover}) // of an unknown command, it fails
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

func TestDescribe(t *testing.T) {
	for _, c := range []struct {
		o    Outcome
		exit command.Exit
		want string
	}{
		{Outcome{Kind: Failed, Reasons: []string{"it failed: KeyError: 'x'"}}, command.Exit{Code: 1, Seconds: 3}, "exit status 1 after 3 s: it failed: KeyError: 'x'"},
		{Outcome{Kind: Failed}, command.Exit{Code: 1, Seconds: 3}, "exit status 1 after 3 s: failed"},
		{Outcome{Kind: OutOfMemory, Reasons: []string{"it failed in forward", "and so on"}}, command.Exit{Code: 1, Seconds: 3}, "exit status 1 after 3 s: out of memory: it failed in forward; and so on"},
		{Outcome{Kind: Done, Reasons: []string{"it exited with status 0"}}, command.Exit{Seconds: 3}, "exit status 0 after 3 s: done"},
	} {
		if got := describe(c.o, c.exit); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

// TestInShort checks that the sentence about a command that ran out of memory has the user's
// line, and nothing twice that the command has printed itself.
func TestInShort(t *testing.T) {
	const text = "Traceback (most recent call last):\n  File \"/home/ada/train.py\", line 9, in <module>\n    main()\n  File \"/home/ada/train.py\", line 7, in main\n    loss = model(x)\n" +
		"  File \"" + site + "torch/nn/modules/module.py\", line 1773, in _wrapped_call_impl\n    return self._call_impl(*args)\n" +
		"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 24.00 GiB of which 1.00 GiB is free.\n"
	plain := Classify(command.Exit{Code: 1, Tail: []byte(text)})
	seen := memory.OutOfMemoryError{Requested: 2 * memory.GiB, Phase: memory.PhaseForward, Micro: 32, Stats: memory.Stats{Capacity: 24 * memory.GiB, Free: memory.GiB, Allocated: 22 * memory.GiB, Reserved: 23 * memory.GiB}}
	var held []memory.Bytes
	for i := range memory.Bytes(memory.LeakWindow) {
		held = append(held, memory.GiB+i*100*memory.MiB)
	}
	for _, c := range []struct {
		name string
		o    Outcome
		want string
	}{
		{"from the traceback", plain, "exit status 1 after 3 s: out of memory in forward: 2 GiB asked for, 1 GiB free of 24 GiB (/home/ada/train.py:7)"},
		{"from inside", plain.FromInside(memory.Evidence{Failure: seen}, "/home/ada/model.py:3"), "exit status 1 after 3 s: out of memory in forward: 2 GiB asked for, 1 GiB free of 24 GiB, 22 GiB allocated, 23 GiB reserved (/home/ada/model.py:3)"},
		{"from inside, without a line", plain.FromInside(memory.Evidence{Failure: seen}, ""), "exit status 1 after 3 s: out of memory in forward: 2 GiB asked for, 1 GiB free of 24 GiB, 22 GiB allocated, 23 GiB reserved (/home/ada/train.py:7)"},
		{"what the command has not printed", plain.FromInside(memory.Evidence{Failure: seen, Boundary: held, Every: 1}, ""), "(/home/ada/train.py:7); memory held between steps rose by "},
		{"a rank", Classify(command.Exit{Code: 1, Tail: []byte("[rank2]: " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n[rank2]: "))}), "exit status 1 after 3 s: out of memory on rank 2 in forward: 2 GiB asked for, 1 GiB free of 24 GiB (/home/ada/train.py:7)"},
		{"no numbers", Classify(command.Exit{Code: 1, Tail: []byte("RuntimeError: CUDA error: out of memory\n")}), ""},
		{"not memory", Classify(command.Exit{Code: 1, Tail: []byte("ValueError: x\n")}), ""},
	} {
		got := inShort(c.o, command.Exit{Code: 1, Seconds: 3})
		if got != c.want && (c.name != "what the command has not printed" || !strings.Contains(got, c.want) || strings.Contains(got, "CUDA")) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
