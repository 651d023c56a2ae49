package exits

import (
	"bytes"
	"strings"
	"testing"
)

// TestReadLine checks that the prefixes of launchers and loggers are stripped from a line,
// and that the rank and the level in them are kept.
func TestReadLine(t *testing.T) {
	for raw, want := range map[string]logLine{
		"plain":                                                         {"plain", rankUnknown, unrated},
		"[rank3]: ValueError: x":                                        {"ValueError: x", 3, unrated},
		"[rank3]:   File \"a\"":                                         {"  File \"a\"", 3, unrated},
		"[default0]:  File \"a\"":                                       {" File \"a\"", 0, unrated},
		"[1,12]<stderr>:ValueError":                                     {"ValueError", 12, unrated},
		"7: ValueError":                                                 {"ValueError", 7, unrated},
		"0/4: ValueError":                                               {"ValueError", 0, unrated},
		"trainer-2  | ValueError":                                       {"ValueError", 2, unrated},
		"(TrainWorker pid=991, ip=10.0.0.4) ValueError":                 {"ValueError", rankUnknown, unrated},
		"2026-10-04T09:12:41.123456789Z ValueError":                     {"ValueError", rankUnknown, unrated},
		"2026-10-04 09:12:41,123 - ERROR - app - lost":                  {"lost", rankUnknown, failure},
		"2026-10-04 09:12:41,123 - app - WARNING - lost":                {"lost", rankUnknown, warning},
		"2026-10-04 09:12:41.123 | ERROR    | __main__:main:12 - lost":  {"lost", rankUnknown, failure},
		"[2026-10-04 09:12:41,123][app][ERROR] - lost":                  {"lost", rankUnknown, failure},
		"[2026-10-04 09:12:41,123] [WARNING] lost":                      {"lost", rankUnknown, warning},
		"[INFO|trainer.py:2134] 2026-10-04 09:12:41,123 >> lost":        {"lost", rankUnknown, routine},
		"ERROR:__main__:lost":                                           {"lost", rankUnknown, failure},
		"[rank1]:[E1004 09:42:40.118202 ProcessGroupNCCL.cpp:629] lost": {"lost", 1, failure},
		"W1004 09:12:43.881000 4021 torch/distributed/api.py:897] lost": {"lost", rankUnknown, warning},
		"[82311.123456] lost":                                           {"lost", rankUnknown, unrated},
		"2026-10-04T09:12:41Z 3: [rank3]: \x1b[31mValueError\x1b[0m":    {"ValueError", 3, unrated},
		"│ /app/train.py:98 in main          │":                         {"/app/train.py:98 in main", rankUnknown, unrated},
		"\x1b]0;title\x07CUDA ERROR: out of memory":                     {"CUDA ERROR: out of memory", rankUnknown, unrated},
		"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate": {"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate", rankUnknown, unrated},
		"MemoryError": {"MemoryError", rankUnknown, unrated},
		"\xff\xfe":    {"?", rankUnknown, unrated},
	} {
		if got := readLine(raw); got != want {
			t.Errorf("%q is read as %+v, want %+v", raw, got, want)
		}
	}
}

// TestLogLines checks that a carriage return ends a line as well, and that long lines and
// long outputs are cut.
func TestLogLines(t *testing.T) {
	var got []string
	for l := range logLines([]byte("1/9\r2/9\rlast\r\nnext\n\nend")) {
		got = append(got, l.text)
	}
	if want := "1/9|2/9|last|next||end"; strings.Join(got, "|") != want {
		t.Errorf("lines %q, want %q", got, want)
	}
	for l := range logLines(bytes.Repeat([]byte("x"), 4<<20)) {
		if len(l.text) > lineMost {
			t.Errorf("a line of %d bytes", len(l.text))
		}
	}
	lines := 0
	for range logLines(bytes.Repeat([]byte("\n"), 2*scanMost)) {
		lines++
	}
	if lines > scanMost {
		t.Errorf("%d lines read, of which at most %d count", lines, scanMost)
	}
}
