package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"
)

func TestFlagsFirst(t *testing.T) {
	app := newApp(&ui{})
	for in, want := range map[string]string{
		"headroom":                                 "headroom",
		"headroom run gpt --json":                  "headroom run --json gpt",
		"headroom run gpt --set a=b -q":            "headroom run --set a=b -q gpt",
		"headroom run gpt --set=a=b x":             "headroom run --set=a=b gpt x",
		"headroom run --json gpt":                  "headroom run --json gpt",
		"headroom run gpt --set":                   "headroom run --set",
		"headroom run -q -- python t.py --json":    "headroom run -q -- python t.py --json",
		"headroom run gpt -- --json":               "headroom run gpt -- --json",
		"headroom report a --output - --format md": "headroom report --output - --format md a",
		"headroom nonsense a --json":               "headroom nonsense a --json",
		"headroom --help":                          "headroom --help",

		// For a completion script only a complete name of a command is kept; the rest of the line is dropped.
		"headroom run gpt --generate-bash-completion":         "headroom run --generate-bash-completion",
		"headroom run --set -- x --generate-bash-completion":  "headroom run --generate-bash-completion",
		"headroom run --generate-bash-completion":             "headroom --generate-bash-completion",
		"headroom nonsense run -- --generate-bash-completion": "headroom --generate-bash-completion",
		"headroom --generate-bash-completion":                 "headroom --generate-bash-completion",
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

func TestFlagHelpFitsEightyColumns(t *testing.T) {
	app := newApp(&ui{})
	for _, command := range append(app.Commands, &cli.Command{Flags: app.Flags}) {
		longest := 0
		for _, f := range command.Flags {
			names, _, _ := strings.Cut(f.String(), "\t")
			longest = max(longest, len(names))
		}
		for _, f := range command.Flags {
			for _, line := range strings.Split(f.String(), "\n") {
				_, usage, _ := strings.Cut(line, "\t")
				if width := len("   ") + longest + len("  ") + len(usage); width > 80 {
					t.Errorf("headroom %s --help: %q needs %d columns", command.Name, usage, width)
				}
			}
		}
	}
}

// TestHelpSaysWhatIsRefused checks that the help of run and find says "not with --" for exactly
// the flags that are refused with a command, and "with --" for those refused without one.
func TestHelpSaysWhatIsRefused(t *testing.T) {
	t.Chdir(t.TempDir())
	u := silent(t)
	said := func(words, command []string) string {
		err := newApp(u).RunContext(context.WithValue(t.Context(), commandKey{}, afterDashes{command: command}), append([]string{"headroom"}, words...))
		return fmt.Sprint(err)
	}
	for _, name := range []string{"run", "find"} {
		command := newApp(&ui{}).Command(name)
		for _, f := range command.Flags {
			_, value, usage := flagParts(f)
			flag := "--" + f.Names()[0]
			switch value {
			case "":
			case "TIME":
				flag += "=1m"
			default:
				flag += "=1"
			}
			withOne := []string{name, flag}
			if name == "run" {
				withOne = append(withOne, "--dry-run")
			}
			refused := strings.Contains(said(withOne, []string{"true"}), flag[:strings.IndexAny(flag+"=", "=")]+" is for ")
			if want := strings.HasPrefix(usage, notWith); refused != want {
				t.Errorf("%s %s with a command: refused is %v, and its help is %q", name, flag, refused, usage)
			}
			refused = strings.Contains(said([]string{name, flag, "nowhere.yaml"}, nil), "there is none after --")
			if want := strings.HasPrefix(usage, "with --: "); refused != want {
				t.Errorf("%s %s without a command: refused is %v, and its help is %q", name, flag, refused, usage)
			}
		}
	}
}
