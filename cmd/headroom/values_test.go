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

// TestWhatDoesNotFitTogether checks settings of which one has no effect beside the other, in a file as well, and variables of the
// environment that the worker reads.
func TestWhatDoesNotFitTogether(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("run.yaml", []byte("command: [python, train.py]\nwatch_only: true\nmicro: 4\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	command := []string{"python", "train.py"}
	for _, c := range []struct {
		name, value string // of a variable
		words       []string
		command     []string
		want, hint  string
	}{
		{words: []string{"--watch-only", "--restart-hung"}, command: command, want: "--restart-hung has no effect with --watch-only", hint: "leave out one of them"},
		{words: []string{"--watch-only", "--restart-leaking"}, command: command, want: "--restart-leaking has no effect with --watch-only", hint: "leave out one of them"},
		{words: []string{"run.yaml"}, want: "--micro has no effect with --no-worker, --observe or --watch-only", hint: "leave out one of them, in run.yaml or on the command line"},
		{words: []string{"--metrics", ""}, command: command, want: "--metrics : it is empty; allowed: " + values["metrics"].allowed, hint: values["metrics"].hint},
		{"HEADROOM_SPILL", "64GiB", nil, command, "HEADROOM_SPILL=64GiB: not one of them; allowed: off, or a number of bytes", "for example HEADROOM_SPILL=68719476736, or unset it"},
		{"HEADROOM_SCALARS", "wandb,aim", nil, command, "HEADROOM_SCALARS=wandb,aim: not one of them; allowed: wandb, mlflow or wandb,mlflow", "for example HEADROOM_SCALARS=wandb, or unset it"},
	} {
		t.Run(c.want, func(t *testing.T) {
			if c.name != "" {
				t.Setenv(c.name, c.value)
			}
			ctx := t.Context()
			if c.command != nil {
				ctx = context.WithValue(ctx, commandKey{}, c.command)
			}
			err := newApp(silent(t)).RunContext(ctx, append([]string{"headroom", "run"}, c.words...))
			if fmt.Sprint(err) != c.want || !ui.IsUsage(err) || ui.HintFor(err) != c.hint {
				t.Errorf("%v, hint %q; want %s, hint %q", err, ui.HintFor(err), c.want, c.hint)
			}
		})
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
