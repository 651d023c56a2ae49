package exits

import (
	"strings"
	"testing"

	"headroom/wrap/command"
)

// TestAdviceIsNoEvidence checks lines that mention memory although it did not run out.
// Each is the only output of a failed command, and must not count as the reason.
func TestAdviceIsNoEvidence(t *testing.T) {
	for _, line := range []string{
		"If you get CUDA out of memory, lower the batch size",
		"try --bf16 to avoid CUDA out of memory",
		"CUDA out of memory errors are mostly caused by long samples",
		"CUDA out of memory may follow",
		"`CUDA out of memory` is what PyTorch says then",
		`see "CUDA out of memory" in the manual`,
		"WARNING: CUDA out of memory, skipping batch",
		"CUDA out of memory, skipping batch",
		"INFO - probe - CUDA out of memory. Tried to allocate 2.00 GiB at batch 512",
		"ValueError: this may end in CUDA out of memory",
		"RuntimeError: refusing to start: CUDA out of memory errors were seen on this node",
		"UserWarning: gradient checkpointing reduces the risk of CUDA out of memory",
		"exited unexpectedly? see https://example.org/dataloader",
		"kubectl describes it as OOMKilled if the container exceeded its limit",
	} {
		if got := Classify(command.Exit{Code: 1, Tail: []byte(line + "\n")}); got.Kind != Failed {
			t.Errorf("%q is taken for %s: %q", line, got.Kind, got.Reasons)
		}
	}
}

// TestErrorsInLogsAreEvidence checks that a sentence about memory counts if it is itself
// the error, even if a logger printed it.
func TestErrorsInLogsAreEvidence(t *testing.T) {
	for line, want := range map[string]Confidence{
		"CUDA out of memory. Tried to allocate 2.00 GiB.":                                           Likely,
		"ERROR:app:training failed: CUDA out of memory. Tried to allocate 2.00 GiB.":                Likely,
		"2026-10-04 09:12:41,123 - app - ERROR - CUDA out of memory. Tried to allocate 2.00 GiB.":   Likely,
		"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.":                   Certain,
		"ERROR:app:torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.":         Likely,
		"OutOfMemoryError: a message that nobody has seen yet":                                      Certain,
		"node-a gpu 3> torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.":     Likely,
		"RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB. If reserved memory is large": Certain,
	} {
		got := Classify(command.Exit{Code: 1, Tail: []byte(line + "\n")})
		if got.Kind != OutOfMemory || got.Confidence != want {
			t.Errorf("%q is %s, %s; want %s: %q", line, got.Kind, got.Confidence, want, got.Reasons)
		}
	}
}

// TestExceptionsOutrankLogs checks that an exception counts rather than a line of a log,
// whichever of them comes first.
func TestExceptionsOutrankLogs(t *testing.T) {
	log, exception := "CUDA out of memory. Tried to allocate 2.00 GiB.\n", "Traceback (most recent call last):\nValueError: x\n"
	for _, text := range []string{
		log + exception, exception + log, exception + "\n" + log,
		"RuntimeError: x\n" + strings.Repeat("and so on\n", followMost) + log, // too far below to be its message
	} {
		if got := Classify(command.Exit{Code: 1, Tail: []byte(text)}); got.Kind != Failed {
			t.Errorf("%q is taken for %s", text, got.Kind)
		}
	}
}

// TestErrorAfterMemory checks that an exception about memory counts as the reason even if
// another exception follows, since handling the first may have caused the second. The
// confidence is then lower.
func TestErrorAfterMemory(t *testing.T) {
	memory, other := tracebackOf(), "Traceback (most recent call last):\nValueError: x\n"
	for text, want := range map[string]Confidence{memory: Certain, memory + other: Likely, other + memory: Certain, memory + memory: Certain} {
		if got := Classify(command.Exit{Code: 1, Tail: []byte(text)}); got.Kind != OutOfMemory || got.Confidence != want {
			t.Errorf("%q is %s, %s; want %s", text, got.Kind, got.Confidence, want)
		}
	}
}
