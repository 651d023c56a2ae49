package wrap

import (
	"strings"
	"testing"
)

// Lines that mention memory although it did not run out: each of them is alone in the
// output of a command that failed, and does not say why it did.
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
		if got := Classify(Exit{Code: 1, Tail: []byte(line + "\n")}); got.Kind != Failed {
			t.Errorf("%q is taken for %s: %q", line, got.Kind, got.Reasons)
		}
	}
}

// Sentences about memory count where they are themselves the error, in a log too.
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
		got := Classify(Exit{Code: 1, Tail: []byte(line + "\n")})
		if got.Kind != OutOfMemory || got.Confidence != want {
			t.Errorf("%q is %s, %s; want %s: %q", line, got.Kind, got.Confidence, want, got.Reasons)
		}
	}
}

// An exception outranks a line of a log, whichever comes first.
func TestExceptionsOutrankLogs(t *testing.T) {
	log, exception := "CUDA out of memory. Tried to allocate 2.00 GiB.\n", "Traceback (most recent call last):\nValueError: x\n"
	for _, text := range []string{
		log + exception, exception + log, exception + "\n" + log,
		"RuntimeError: x\n" + strings.Repeat("and so on\n", followMost) + log, // too far below to be its message
	} {
		if got := Classify(Exit{Code: 1, Tail: []byte(text)}); got.Kind != Failed {
			t.Errorf("%q is taken for %s", text, got.Kind)
		}
	}
}

// An exception about memory stays the root although another one followed, which its
// handling may have caused; the verdict is then less sure.
func TestErrorAfterMemory(t *testing.T) {
	memory, other := tracebackOf(), "Traceback (most recent call last):\nValueError: x\n"
	for text, want := range map[string]Confidence{memory: Certain, memory + other: Likely, other + memory: Certain, memory + memory: Certain} {
		if got := Classify(Exit{Code: 1, Tail: []byte(text)}); got.Kind != OutOfMemory || got.Confidence != want {
			t.Errorf("%q is %s, %s; want %s", text, got.Kind, got.Confidence, want)
		}
	}
}
