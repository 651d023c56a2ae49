package main

import (
	"slices"
	"strings"
	"testing"
)

func TestFlagsFirst(t *testing.T) {
	app := newApp(&ui{})
	for in, want := range map[string]string{
		"headroom":                                    "headroom",
		"headroom run gpt --json":                     "headroom run --json gpt",
		"headroom run gpt --set a=b -q":               "headroom run --set a=b -q gpt",
		"headroom run gpt --set=a=b x":                "headroom run --set=a=b gpt x",
		"headroom run --json gpt":                     "headroom run --json gpt",
		"headroom run gpt --set":                      "headroom run --set",
		"headroom run -q -- python t.py --json":       "headroom run -q -- python t.py --json",
		"headroom run gpt -- --json":                  "headroom run gpt -- --json",
		"headroom report a --output - --format md":    "headroom report --output - --format md a",
		"headroom nonsense a --json":                  "headroom nonsense a --json",
		"headroom run gpt --generate-bash-completion": "headroom run gpt --generate-bash-completion",
		"headroom --help":                             "headroom --help",
	} {
		if got := strings.Join(flagsFirst(app, strings.Fields(in)), " "); got != want {
			t.Errorf("flagsFirst(%s) = %s, want %s", in, got, want)
		}
	}
}

func TestFlagsFirstKeepsEveryWord(t *testing.T) {
	app := newApp(&ui{})
	words := []string{"gpt", "--set", "a=b", "--json", "-", "--", "x"}
	for i := range 1 << (2 * len(words)) {
		args := []string{"headroom", "run"}
		for j := range words {
			if i>>(2*j)&3 == 0 {
				args = append(args, words[j])
			}
		}
		if args[len(args)-1] == "--set" {
			continue // has no value
		}
		got := flagsFirst(app, slices.Clone(args))
		slices.Sort(got)
		slices.Sort(args)
		if !slices.Equal(got, args) {
			t.Fatalf("%q became %q", args, got)
		}
	}
}
