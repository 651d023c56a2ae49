package configs

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/config.md")

func TestDocsDoNotDrift(t *testing.T) {
	name := filepath.Join("..", "docs", "config.md")
	if *update {
		if err := os.WriteFile(name, []byte(Markdown()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != Markdown() {
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
