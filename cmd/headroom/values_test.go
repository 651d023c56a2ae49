package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"headroom/cmd/headroom/ui"
)

// TestWrongValues gives a wrong value to every flag that takes a time, a number or a size. The
// message must name the flag, the value, what is allowed and what to write, in headroom's own
// words.
func TestWrongValues(t *testing.T) {
	t.Chdir(t.TempDir())
	u := silent(t)
	ctx := context.WithValue(t.Context(), commandKey{}, []string{"python", "train.py", "--bs", "4", "--acc", "2"})
	seen := 0
	for _, command := range newApp(u).Commands {
		for _, f := range command.Flags {
			_, word, _ := flagParts(f)
			wrong, known := map[string][]string{
				"TIME":     {"soon: not a time", "10: not a time", "-3m0s: out of range"},
				"N":        {"many: not a whole number", "3.5: not a whole number", "0: out of range", "99999999999999999999: out of range"},
				"SIZE":     {"lots: not a size", "60: not a size", "0B: out of range"},
				"SIZE|off": {"lots: not a size", "60: not a size", "0B: out of range"},
			}[word]
			if !known {
				continue
			}
			seen++
			name := f.Names()[0]
			for _, want := range wrong {
				value, _, _ := strings.Cut(want, ":")
				words := []string{"headroom", command.Name, "--knob=micro=--bs", "--knob=accumulation=--acc", "--" + name, value}
				err := newApp(u).RunContext(ctx, words)
				want = fmt.Sprintf("--%s %s; allowed: %s", name, want, values[name].allowed)
				if values[name].allowed == "" || fmt.Sprint(err) != want || !ui.IsUsage(err) || ui.HintFor(err) != values[name].hint {
					t.Errorf("%v: %v, hint %q; want %s, hint %q", words[1:], err, ui.HintFor(err), want, values[name].hint)
				}
			}
		}
	}
	if seen < 8 {
		t.Errorf("%d such flags were found", seen)
	}
}

// silent returns a ui that prints to the null device.
func silent(t *testing.T) *ui.UI {
	t.Helper()
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = null.Close() })
	return ui.New(null, null, func(string) (string, bool) { return "", false })
}
