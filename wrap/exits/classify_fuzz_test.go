package exits

import (
	"bytes"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"headroom/wrap/command"
)

// FuzzClassify checks that, whatever a command prints, Classify returns an outcome that
// obeys the rules for all outcomes.
func FuzzClassify(f *testing.F) {
	for _, x := range exitFixtures(f) {
		f.Add(x.exit.Tail, x.exit.Code, int(x.exit.Signal), x.exit.Kernel.GroupKills, "")
	}
	f.Add([]byte("CUDA out of memory"), -1, 200, int64(-1), "[rank1]: ValueError: x")
	f.Fuzz(func(t *testing.T, tail []byte, code, signal int, kills int64, record string) {
		e := command.Exit{Code: code, Signal: syscall.Signal(signal), Tail: tail, Kernel: command.Kernel{GroupKills: kills}}
		if record != "" {
			e.Ranks = []command.RankError{{Rank: 1, Message: record}}
		}
		before := bytes.Clone(tail)
		o := Classify(e)
		if !bytes.Equal(before, tail) {
			t.Error("the tail was written to")
		}
		if len(o.Reasons) == 0 || o.Confidence == "" || (o.Evidence != nil) != o.Kind.Memory() {
			t.Errorf("%+v", o)
		}
		if code == 0 && signal == 0 && o.Kind != Done {
			t.Errorf("status 0 is %q", o.Kind)
		}
		if len(o.Error) > errorMost+len("…") || o.Rank < -1 || o.Device < -1 {
			t.Errorf("%+v", o)
		}
		if o.Evidence != nil {
			n := o.Evidence.Failure
			if n.Requested < 0 || n.Stats.Free < 0 || n.Stats.Capacity < 0 || n.Stats.Foreign < 0 || n.Stats.Reserved < 0 {
				t.Errorf("negative amounts: %+v", n)
			}
		}
	})
}

// TestHostileOutput checks that a scan keeps a bounded amount of data, whatever a command
// prints, and that it does not become extremely slow.
func TestHostileOutput(t *testing.T) {
	for name, unit := range map[string]string{
		"tracebacks without end":    tracebackOf(at("a.py", "f", "g()")),
		"frames":                    at("a.py", "f", "g()"),
		"chains":                    tracebackOf() + "\nDuring handling of the above exception, another exception occurred:\n\n",
		"a rank a line":             "",
		"cascades after an error":   "ValueError: x\nBroken pipe\nBroken pipe\nBroken pipe\n",
		"errors":                    "ValueError: x\n",
		"shapes":                    "tensor with shape[" + strings.Repeat("9,", 40) + "] and type float by allocator\n",
		"colours":                   "\x1b[31m",
		"heads of tracebacks":       "Traceback (most recent call last):\n",
		"one line":                  "CUDA out of memory. ",
		"summaries":                 "Root Cause (first observed failure):\n  rank      : 2 (local_rank: 2)\n",
		"carriage returns":          "\r",
		"an exception's long lines": "RuntimeError: x\n" + strings.Repeat(strings.Repeat("Process 1 has 2.00 GiB memory in use. ", 200)+"\n", 9),
	} {
		t.Run(name, func(t *testing.T) {
			tail := hostile(unit)
			start := time.Now()
			found := scan(tail)
			Classify(command.Exit{Code: 1, Tail: tail})
			// The limit is loose enough for a busy machine, and still catches a scan that is a
			// thousand times slower than usual.
			if took := time.Since(start); took > 30*time.Second {
				t.Errorf("took %v", took)
			}
			if len(found.faults) > faultsMost {
				t.Errorf("%d faults kept", len(found.faults))
			}
			for _, x := range found.faults {
				if len(x.frames) > framesMost || len(x.message) > messageMost+lineMost {
					t.Errorf("%d frames and %d bytes kept", len(x.frames), len(x.message))
				}
			}
		})
	}
}

// hostile returns output that repeats unit inside a traceback. If unit is "", each line
// is printed by a different rank.
func hostile(unit string) []byte {
	tail := []byte("Traceback (most recent call last):\n")
	for i := 0; len(tail) < scanMost/4; i++ {
		if unit == "" {
			tail = fmt.Appendf(tail, "[rank%d]: Traceback (most recent call last):\n", i)
		} else {
			tail = append(tail, unit...)
		}
	}
	return append(tail, "\nRuntimeError: the last one\n"...)
}

// TestManyRanks checks that a scan keeps track of a bounded number of ranks, however many
// ranks the prefixes of the lines name.
func TestManyRanks(t *testing.T) {
	s := newScanner()
	for l := range logLines(hostile("")) {
		s.read(l)
	}
	if len(s.streams) > streamsMost+1 {
		t.Errorf("%d streams kept", len(s.streams))
	}
}
