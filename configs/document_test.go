package configs

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/config.md")

func TestDocsDoNotDrift(t *testing.T) {
	name := filepath.Join("..", "docs", "config.md")
	if *update {
		if err := os.WriteFile(name, []byte(markdown()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != markdown() {
		t.Errorf("%s does not match the table of keys; write it again with: go test ./configs -run TestDocs -update", name)
	}
}

// TestEveryKeyIsDocumented checks that every key has a description and appears once in
// the table. It also checks that no text has a vertical bar, which would break the
// table in docs/config.md.
func TestEveryKeyIsDocumented(t *testing.T) {
	seen := map[string]bool{}
	for _, k := range Keys() {
		switch {
		case k.Doc == "" || strings.HasSuffix(k.Doc, "."):
			t.Errorf("%s: doc %q: a sentence without the full stop", k.Name, k.Doc)
		case strings.ContainsAny(k.Doc+k.Allowed()+k.Default, "|\n"):
			t.Errorf("%s: a bar or a line break", k.Name)
		case seen[k.Name]:
			t.Errorf("%s: twice in the table", k.Name)
		case k.Required && k.Default != "":
			t.Errorf("%s: required, and has a default", k.Name)
		}
		if _, ok := find(k.Only.Key); !ok && k.Only.Key != "" {
			t.Errorf("%s: only for the unknown key %s", k.Name, k.Only.Key)
		}
		seen[k.Name] = true
	}
}

// markdown returns the text of docs/config.md: every key with its default, the values
// that are allowed, and its meaning.
func markdown() string {
	var b strings.Builder
	b.WriteString(`# Configuration

A run is one YAML file. Start from a preset (` + presetLinks() + `) or from nothing: only
model.kind, data.kind and one of train.steps and train.epochs have to be given.

    headroom run gpt                                    a preset
    headroom run my.yaml                                a file
    headroom run gpt --set batch.micro=8 --set data.path=book.txt
                                                        any key, overridden
    headroom run gpt --set schedule.kind=constant --unset schedule.min
                                                        a key left out of the file
    headroom config show gpt > my.yaml                  a preset, to make it your own

Unknown keys and bad values are refused before anything starts, and reported all
at once, each with file and line. Sizes need a unit: B, KB, MB, GB, TB (powers of 1000)
or KiB, MiB, GiB, TiB (powers of 1024). Paths are relative to where the command
is started. Anchors, aliases and tags are not allowed.

Keys marked ● may not change within a run: the run's folder records the values it
was started with, and a run is not continued with different ones. All other keys
may be changed from one start to the next.

This page is generated from the table in configs/keys.go.
`)
	group := ""
	for i, k := range keys {
		head, _, grouped := strings.Cut(k.Name, ".")
		if i == 0 || grouped && head != group {
			title := head
			if !grouped {
				title = "The run"
			}
			fmt.Fprintf(&b, "\n## %s\n\n| key | default | allowed | meaning |\n|---|---|---|---|\n", title)
			group = head
		}
		fmt.Fprintf(&b, "| `%s`%s | %s | %s | %s |\n", k.Name, mark(k), shownDefault(k), k.Allowed(), meaning(k))
	}
	return b.String()
}

func presetLinks() string {
	links := Presets()
	for i, p := range links {
		links[i] = fmt.Sprintf("[%s](../configs/presets/%s.yaml)", p, p)
	}
	return strings.Join(links, ", ")
}

func mark(k Key) string {
	if k.Fixed {
		return " ●"
	}
	return ""
}

func shownDefault(k Key) string {
	switch {
	case k.Required:
		return "required"
	case k.Default == "":
		return "—"
	}
	return "`" + k.Default + "`"
}

func meaning(k Key) string {
	if k.Only.Key == "" {
		return k.Doc
	}
	return fmt.Sprintf("%s (%s: %s)", k.Doc, k.Only.Key, list(k.Only.Values, "or"))
}
