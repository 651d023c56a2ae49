package main

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/urfave/cli/v2"

	"headroom/cmd/headroom/ui"
)

func TestFlagsFirst(t *testing.T) {
	app := newApp(&ui.UI{})
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
		"headroom profiles show --help":            "headroom profiles --help",
		"headroom run gpt --set --help -q -h":      "headroom run -h",
		"headroom run gpt -- --help":               "headroom run gpt -- --help",

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
	app := newApp(&ui.UI{})
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

// TestHelpFitsAScreen checks that every page of help has at most 80 columns and 40 lines. The page
// of run may have 51 lines, because run has the most flags.
func TestHelpFitsAScreen(t *testing.T) {
	pages := []string{"headroom", "headroom --help"}
	for _, command := range newApp(&ui.UI{}).Commands {
		pages = append(pages, "headroom "+command.Name+" --help")
	}
	for _, page := range pages {
		words := strings.Fields(page)
		out, _ := exec.Command(words[0], words[1:]...).CombinedOutput() // headroom alone fails
		lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
		if lines[0] == "" {
			t.Errorf("%s prints no help", page)
		}
		most := 40
		if page == "headroom run --help" {
			most = 51
		}
		if len(lines) > most {
			t.Errorf("%s has %d lines, more than %d:\n%s", page, len(lines), most, out)
		}
		for i, line := range lines {
			if columns := utf8.RuneCountInString(line); columns > 80 {
				t.Errorf("%s: line %d has %d columns: %s", page, i+1, columns, line)
			}
		}
	}
}

// TestHelpSaysWhatIsRefused checks the groups of flags in the help of run and find. The group for a
// configuration must have exactly the flags that are refused with a command, and the group for a
// command exactly those that are refused without one.
func TestHelpSaysWhatIsRefused(t *testing.T) {
	t.Chdir(t.TempDir())
	u := silent(t)
	said := func(words, command []string) string {
		err := newApp(u).RunContext(context.WithValue(t.Context(), commandKey{}, command), append([]string{"headroom"}, words...))
		return fmt.Sprint(err)
	}
	for _, name := range []string{"run", "find"} {
		command := newApp(&ui.UI{}).Command(name)
		for _, f := range command.Flags {
			_, value, _ := flagParts(f)
			flag, group := "--"+f.Names()[0], ""
			if in, ok := f.(cli.CategorizableFlag); ok {
				group = in.GetCategory()
			}
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
			if want := group == forConfig; refused != want {
				t.Errorf("%s %s with a command: refused is %v, and its group is %q", name, flag, refused, group)
			}
			refused = strings.Contains(said([]string{name, flag, "nowhere.yaml"}, nil), "there is none after --")
			if want := group == forCommand; refused != want {
				t.Errorf("%s %s without a command: refused is %v, and its group is %q", name, flag, refused, group)
			}
		}
	}
}
