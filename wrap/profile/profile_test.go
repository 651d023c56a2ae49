package profile

import (
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"
)

func TestBuiltinsAreValid(t *testing.T) {
	all, err := Load(embedded, "builtin")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		if p.File != "builtin/"+p.Name+".yaml" {
			t.Errorf("the profile in %s has the name %s", p.File, p.Name)
		}
	}
	if len(all) == 0 {
		t.Error("no profiles")
	}
}

// TestProfileProblems checks that all mistakes in a profile are reported at once, each
// with its line and with what to write instead.
func TestProfileProblems(t *testing.T) {
	const text = `name: bad
match: {argv: "(", flag: [--x]}
style: "--k  v"
knobs:
  micro: {flags: [--bs], scope: devices, typ: int}
  accumulation: {}
  spare: {flags: [--spare]}
  eval: {flags: [--eval], min: 2}
law: {write: [micro, acumulation], require: ["micro %"], derive: accumulation}
checkpoints: {root: "{outptu}"}
resume: {mode: path, set: {resum: x}, needs: {version: x}}
unit: steps
`
	_, err := Parse("bad.yaml", []byte(text))
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{
		"bad.yaml:2: match.argv: (: not a regular expression",
		"bad.yaml:2: match.flag: unknown key; did you mean flags?",
		"bad.yaml:3: style: --k  v: not allowed; must be one of --k v, --k=v, k=v, file; did you mean --k v?",
		"bad.yaml:5: knobs.micro.scope: devices: not allowed; must be one of device, rank, total, unsaid; did you mean device?",
		"bad.yaml:5: knobs.micro.typ: unknown key; did you mean type?",
		"bad.yaml:6: knobs.accumulation: there is nowhere to set it; give flags, paths, env or launcher",
		"bad.yaml:7: knobs.spare: nothing uses it",
		"bad.yaml:8: knobs.eval.min: 2: only micro may have a lower bound",
		"bad.yaml:9: law.write: acumulation: unknown knob; did you mean accumulation?",
		"bad.yaml:9: law.require: micro %: not a comparison",
		"bad.yaml:9: law.derive: accumulation: needs the knob global",
		"bad.yaml:10: checkpoints.root: outptu: unknown knob",
		"bad.yaml:11: resume.mode: path: needs checkpoints.root and checkpoints.glob",
		"bad.yaml:11: resume.set: resum: unknown knob",
		"bad.yaml:11: resume.needs: x: write package: NAME and version: NUMBER",
		"bad.yaml:12: unit: steps: not allowed; must be one of step, sample, epoch, micro-batch; did you mean step?",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in\n%v", want, err)
		}
	}
	var problem *Error
	if !errors.As(err, &problem) {
		t.Errorf("%T is no Error", err)
	}
}

func TestParseRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"":                        "the file is empty",
		"name: x\n---\nname: y\n": "more than one document",
		"name: x\nname: y\n":      "given twice, first on line 1",
		"name: [x\n":              "invalid YAML",
		"version: 2\nnope: 1\n":   "p.yaml:1: version: 2: this headroom reads version 1 of the profile language",
		"name: x\nversion: a\n":   "p.yaml:2: version: a: this headroom reads version 1",
		"- x\n":                   "not a mapping",
		"name: x\nknobs: {micro: {flags: [--b]}}\nmatch: {keys: [batch_size]}\n":       "does not distinguish one framework from another",
		"name: x\nmatch: {flags: [--b]}\nknobs: {micro: {flags: [--b]}}\n":             "nothing keeps the effective batch",
		"name: x\nmatch: {flags: [--b]}\nknobs: {micro: {paths: [a.b]}}\n":             "no configuration file that could hold this key",
		"name: x\ncheckpoints: {root: out, glob: '[.pt'}\n":                            "p.yaml:2: checkpoints.glob: [.pt: must be a pattern of files",
		"name: x\nlaw: {write: [accumulation]}\nknobs: {accumulation: {flags: [--a]}}": "knobs.micro: missing",
	} {
		_, err := Parse("p.yaml", []byte(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func TestPlainKnobs(t *testing.T) {
	for _, c := range []struct{ knobs, want string }{
		{"micro=--bs accumulation=--accum", ""},
		{"micro=$BS accumulation=--accum@total", ""},
		{"accumulation=--accum", "micro: missing"},
		{"micro", "write NAME=FLAG"},
		{"micro=--bs micro=--b", "named twice"},
		{"micro=--bs checkpoints=out/[.pt", "checkpoints: out/[.pt"},
		{"micro=--bs checkpoints=out/[.pt", "must be a pattern of files"},
		{"micro=--bs checkpoints=out/**/step-*.pt", "write */ for each level"},
		{"micro=--bs checkpoints=out\x01/step-*.pt", `checkpoints: "out\x01/step-*.pt": has a control character`},
		{"micro=--bs unit=sample", ""},
		{"micro=--bs unit=batch", "unit: batch: must be one of step, sample, epoch, micro-batch"},
		{"micor=--bs", "did you mean micro?"},
		{"micro=--bs@all", "must be device, rank or total"},
		{"micro=--", "must be a flag, a key or a $VARIABLE"},
		{"micro=$1x", "must be a flag, a key or a $VARIABLE"},
	} {
		_, err := Plain(strings.Fields(c.knobs))
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.knobs, err, c.want)
		}
	}
}

// TestProfileVersion checks that a profile without a version is read as version 1, that
// other versions are refused, and that the profile keeps the text of its file.
func TestProfileVersion(t *testing.T) {
	const text = "name: x\nmatch: {flags: [--b]}\nknobs: {micro: {flags: [--b]}, accumulation: {flags: [--a]}}\nlaw: {write: [micro, accumulation]}\n"
	for _, given := range []string{"", "version: 1\n"} {
		p, err := Parse("p.yaml", []byte(given+text))
		if err != nil || p.Version != 1 || p.File != "p.yaml" || string(p.Text) != given+text {
			t.Errorf("%q: %+v, %v", given, p, err)
		}
	}
	_, err := Parse("p.yaml", []byte("version: 2\nnope: 1\n"))
	if err == nil || strings.Contains(err.Error(), "nope") {
		t.Errorf("of another version nothing else is said: %v", err)
	}
}

// TestProfilesPage checks that the profile in docs/profiles.md is valid, and that the page
// mentions every key of the language.
func TestProfilesPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/profiles.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```yaml\n")
	text, _, _ := strings.Cut(rest, "```")
	if p, err := Parse("docs", []byte(text)); err != nil || p.Name != "mygpt" {
		t.Error(err)
	}
	source, err := os.ReadFile("parse.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`"([a-z_]+)":\s+(?:r\.|oneOf|func)`).FindAllStringSubmatch(string(source), -1) {
		if !strings.Contains(string(page), m[1]) {
			t.Errorf("docs/profiles.md does not say what %s is", m[1])
		}
	}
}

func TestEvaluate(t *testing.T) {
	for text, want := range map[string]string{
		"5 * 8": "40", "2**3": "", "16//4": "4", "15//4": "", "(1+2)*3 - 1": "8", "1_000": "1000", "7 % 0": "", "0x10": "",
		"micro": "", "f(3)": "", "": "", "9999999999": "", "1 << 4": "", "-3": "", "2 * -3": "",
	} {
		n, err := Evaluate(text, nil)
		if got := strings.TrimSpace(strings.Repeat(" ", 1) + itoa(n, err)); got != want {
			t.Errorf("%q: %s, want %q", text, got, want)
		}
	}
	for text, ok := range map[string]bool{"[4]": true, "4": true, "[4, 4]": false, "4,2": false, "[]": false} {
		if _, err := List.Amount(text); (err == nil) != ok {
			t.Errorf("list %s: %v", text, err)
		}
	}
	for _, text := range []string{"", "${x}", "0", "-1", "auto", "8.0", "1073741825", "020", "0_16"} {
		if _, err := Int.Amount(text); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
}

func itoa(n int, err error) string {
	if err != nil {
		return ""
	}
	return Int.Write(n, "")
}

func FuzzParse(f *testing.F) {
	files, err := embedded.ReadDir("builtin")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		content, err := embedded.ReadFile("builtin/" + file.Name())
		if err != nil {
			f.Fatal(err)
		}
		f.Add(content)
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		_, err := Parse("p.yaml", content)
		var problem *Error
		if err != nil && !errors.As(err, &problem) {
			t.Fatalf("%T: %v", err, err)
		}
	})
}

// TestCheckpointKnob checks where --knob checkpoints=PATTERN looks: a bracket in a folder's name is
// no wildcard, unlike one in the name of a checkpoint.
func TestCheckpointKnob(t *testing.T) {
	for place, want := range map[string]Layout{
		"step-*.pt":              {Root: ".", Glob: "step-*.pt"},
		"out/last.pt":            {Root: "out", Glob: "last.pt"},
		"out/step-[0-9]*.pt":     {Root: "out", Glob: "step-[0-9]*.pt"},
		"lr=[1,2]/step-*.pt":     {Root: "lr=[1,2]", Glob: "step-*.pt"},
		"run*[1]/a[2]/step-?":    {Root: ".", Glob: `run*\[1]/a\[2]/step-?`},
		"a[1]/run*/step-[ab]":    {Root: "a[1]", Glob: "run*/step-[ab]"},
		`out/run\[1\]/step-*.pt`: {Root: "out", Glob: `run\[1\]/step-*.pt`},
	} {
		p, err := Plain([]string{"micro=--bs", "checkpoints=" + place})
		if err != nil || p.Checkpoints.Root != want.Root || p.Checkpoints.Glob != want.Glob {
			t.Errorf("%s: %q in %q, %v", place, p.Checkpoints.Glob, p.Checkpoints.Root, err)
		}
	}
}
