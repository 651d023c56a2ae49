package exits

import (
	"strings"
	"testing"

	"headroom/memory"
	"headroom/wrap/command"
)

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
		if got := Describe(c.o, c.exit); got != c.want {
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
		got := InShort(c.o, command.Exit{Code: 1, Seconds: 3})
		if got != c.want && (c.name != "what the command has not printed" || !strings.Contains(got, c.want) || strings.Contains(got, "CUDA")) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
