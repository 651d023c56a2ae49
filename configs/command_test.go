package configs

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"headroom/memory"
	"headroom/spelling"
)

// commandFile writes text to a new file and returns the file's path.
func commandFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "night.yaml")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLoadCommand(t *testing.T) {
	path := commandFile(t, `command: [torchrun, --nproc-per-node, 2, train.py, --lr, 1e-4, "", '*.txt', yes]
dir: sub
name: night
profile: ./own.yaml
knobs: {micro: --bs@total, accumulation: $ACC}
world: 2
trust: true
free: 60GiB
hang: 90s
restart_hung: true
restart_leaking: true
snapshot: true
spill: 64GiB
allow: [recompute]
`)
	c, err := LoadCommand(path)
	if err != nil {
		t.Fatal(err)
	}
	want := &Command{Args: []string{"torchrun", "--nproc-per-node", "2", "train.py", "--lr", "1e-4", "", "*.txt", "yes"}, Dir: filepath.Join(filepath.Dir(path), "sub"),
		Name: "night", Profile: filepath.Join(filepath.Dir(path), "own.yaml"), Knobs: []string{"micro=--bs@total", "accumulation=$ACC"}, World: 2, Trust: true,
		Free: 60 * memory.GiB, Hang: 90 * time.Second, RestartHung: true, RestartLeaking: true, Spill: new(64 * memory.GiB), Snapshot: true, Allow: []string{"recompute"}, origins: c.origins}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got %+v", c)
	}
	if at := strings.TrimPrefix(c.At("knobs.micro")+" "+c.At("world")+" "+c.At("nothing"), filepath.Dir(path)); !strings.HasSuffix(c.At("knobs.micro"), "night.yaml:5") || !strings.HasSuffix(c.At("world"), "night.yaml:6") || !strings.HasSuffix(c.At("nothing"), "night.yaml") {
		t.Errorf("places %s", at)
	}
	// The run.yaml of a command's run has the same format.
	c, err = LoadCommand(commandFile(t, "command:\n    - python\n    - train.py\ndir: /somewhere\n"))
	if err != nil || c.Dir != "/somewhere" || len(c.Args) != 2 || c.Hang != DefaultHang {
		t.Errorf("%+v, %v", c, err)
	}
}

// TestLoadCommandProblems checks that all problems are reported at once, each with its
// line, what is allowed and what was probably meant.
func TestLoadCommandProblems(t *testing.T) {
	for _, c := range []struct {
		text string
		want []string
	}{
		{"comand: [x]\nknob: {micro: --bs}\nworld: 0\ntrust: maybe\nname: a/b\nprofile: [x]\ncolour: red\n", []string{
			"night.yaml:1: comand: [x]: unknown key; did you mean command?",
			"night.yaml:2: knob: {micro: --bs}: unknown key; did you mean knobs?",
			"night.yaml:3: world: 0: out of range; allowed: a whole number, 1 to 1048576",
			"night.yaml:4: trust: maybe: neither true nor false; allowed: true or false",
			"night.yaml:5: name: a/b: not a valid name for a folder; allowed: 1 to 100 letters",
			"night.yaml:6: profile: [x]: a list, not text",
			"night.yaml:7: colour: red: unknown key; the known keys are command, dir, name, profile, knobs, world, trust, free, hang, restart_hung, restart_leaking, watch_only, observe, no_worker, spill, micro, snapshot, allow, trackers and notify",
			"night.yaml: command: missing; write the words of the training command",
		}},
		{"command: python train.py\n", []string{"night.yaml:1: command: python train.py: not a list; allowed: a list of words, as in [python, train.py]"}},
		{"command: []\n", []string{"night.yaml:1: command: []: empty; allowed: a list of words"}},
		{"command: [a]\nhang: soon\nfree: 3\n", []string{"night.yaml:2: hang: soon: not a time; allowed: never, or a time with its unit", "night.yaml:3: free: 3: not a size"}},
		{"command: [a]\nhang: -1s\n", []string{"hang: -1s: out of range"}},
		{"command: [a]\nobserve: true\nno_worker: true\n", []string{"night.yaml:2: observe: true: has no effect with no_worker: true"}},
		{"command: [a]\nsnapshot: true\nno_worker: true\n", []string{"night.yaml:2: snapshot: true: has no effect with no_worker: true"}},
		{"command: [a]\nrestart_leaking: true\nno_worker: true\n", []string{"night.yaml:2: restart_leaking: true: has no effect with no_worker: true"}},
		{"command: [a]\nmicro: 0\n", []string{"night.yaml:2: micro: 0: not one of them; allowed: auto, or a whole number, at least 1"}},
		{"command: [a]\nmicro: 08\n", []string{"night.yaml:2: micro: 08: not one of them"}},
		{"command: [a]\nmicro: auto\nno_worker: true\n", []string{"night.yaml:2: micro: auto: has no effect with no_worker: true"}},
		{"command: [a]\nhang: never\nrestart_hung: true\n", []string{"night.yaml:3: restart_hung: true: has no effect with hang: never"}},
		{"command: [a, [b]]\n", []string{"line 1: a list, not a word"}},
		{"command:\n  - a\n  -\n", []string{"line 3: no value, expected a word"}},
		{"command: [a]\ncommand: [b]\n", []string{"night.yaml:2: command: [b]: given twice, first on line 1"}},
		{"command: [a]\nknobs: {micro: --a, micro: --b}\n", []string{"micro: given twice"}},
		{"command: [a]\nknobs: {micro: [--a]}\n", []string{"micro on line 2: a list, not text"}},
		{"command: [a]\nknobs: [micro]\n", []string{"not a mapping; allowed: names and values"}},
		{"command: [*x]\n", []string{"unknown anchor"}},
		{"command: [&x a]\n", []string{"anchor &x: not allowed"}},
		{"- command\n", []string{"not a mapping; write keys and values, as in command: [python, train.py]"}},
	} {
		_, err := LoadCommand(commandFile(t, c.text))
		if err == nil {
			t.Errorf("%q: accepted", c.text)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q: no %q in\n%v", c.text, want, err)
			}
		}
		if lines := strings.Count(err.Error(), "\n") + 1; lines != len(c.want) {
			t.Errorf("%q: %d problems, want %d:\n%v", c.text, lines, len(c.want), err)
		}
	}
}

func TestIsCommand(t *testing.T) {
	for text, want := range map[string]bool{
		"command: [a]\n":                true,
		"comand: [a]\n":                 true,
		"dir: .\nCommand: x\n":          true,
		"model: {kind: gpt}\nname: x\n": false,
		"[command]\n":                   false,
		"command: [a\n":                 false,
		"":                              false,
	} {
		if got := IsCommand(commandFile(t, text)); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
	for _, path := range []string{"gpt", "nowhere.yaml", "."} {
		if IsCommand(path) {
			t.Errorf("%s is a command", path)
		}
	}
	for _, k := range members("") {
		if spelling.Nearest(k, []string{"command"}) != "" {
			t.Errorf("a configuration with %s would be taken for a command", k)
		}
	}
}

// TestDocumentOfACommand checks that a written command is read back unchanged, whatever
// its words are. It also checks that each key that was not given appears as a comment,
// and that the comment would be a valid line without its #.
func TestDocumentOfACommand(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "headroom.yaml")
	rapid.Check(t, func(r *rapid.T) {
		word := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"-", "--", "#x", "a: b", "2", "1e-4", "yes", "null", "~", "*a", "&b", "!c", "a\nb", " a ", "'", `"`, "\t", "\u2028", "é", "%d", "`", "{", "[x]", "a\r\nb"}))
		c := &Command{Args: append([]string{"python"}, rapid.SliceOf(word).Draw(r, "words")...), Dir: folder,
			Name: rapid.SampledFrom([]string{"", "night"}).Draw(r, "name"), World: rapid.IntRange(0, 9).Draw(r, "world"), Trust: rapid.Bool().Draw(r, "trust"),
			Profile: rapid.SampledFrom([]string{"", "timm", "/a b.yaml"}).Draw(r, "profile"),
			Hang:    rapid.SampledFrom([]time.Duration{DefaultHang, 0, 90 * time.Second}).Draw(r, "hang"), Free: memory.Bytes(rapid.IntRange(0, 1<<40).Draw(r, "free"))}
		c.RestartHung = c.Hang > 0 && rapid.Bool().Draw(r, "restart")
		c.RestartLeaking = rapid.Bool().Draw(r, "leaking")
		c.Spill = rapid.SampledFrom([]*memory.Bytes{nil, new(memory.Bytes), new(64 * memory.GiB), new(memory.Bytes(12345))}).Draw(r, "spill")
		if rapid.Bool().Draw(r, "named") {
			c.Knobs = []string{"micro=$BS", "accumulation=--acc"}
		}
		for i, w := range c.Args {
			c.Args[i] = strings.ReplaceAll(w, "\x00", "")
		}
		text, err := c.YAML()
		if rapid.Bool().Draw(r, "for people") {
			text, err = c.Document(map[string][]string{"": {"of " + strings.Join(c.Args, " ")}, "world": {"a note"}})
		}
		if err != nil {
			r.Fatal(err)
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			r.Fatal(err)
		}
		got, err := LoadCommand(path)
		if err != nil {
			r.Fatalf("%v\n%s", err, text)
		}
		got.origins = nil
		if !reflect.DeepEqual(got, c) {
			r.Fatalf("wrote %+v, read %+v\n%s", c, got, text)
		}
	})
	if _, err := (&Command{Args: []string{"a\xff"}}).Document(nil); err == nil {
		t.Error("bytes that YAML cannot hold were written")
	}
	text, err := (&Command{Args: []string{"python"}, Hang: DefaultHang}).Document(nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := LoadCommand(commandFile(t, strings.NewReplacer("# dir:", "dir:", "# name:", "name:", "# profile:", "profile:", "# knobs:", "knobs:", "# world:", "world:", "# free:", "free:", "# hang:", "hang:", "# restart_hung:", "restart_hung:", "# restart_leaking:", "restart_leaking:", "# spill:", "spill:").Replace(string(text)))); err != nil {
		t.Errorf("the examples: %v", err)
	}
}

func TestEveryCommandKeyIsDocumented(t *testing.T) {
	page, err := os.ReadFile("../docs/profiles.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "## A command in a file")
	for _, k := range commandKeys {
		if !strings.Contains(section, "`"+k.name+"`") {
			t.Errorf("docs/profiles.md does not say what %s is", k.name)
		}
	}
}
