package report

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

// TestOneFileAsksWhichBodyMadeTheSteps checks that of the sources and templates only body.go tells a
// run of headroom's own from that of a command. Every other file reads the fields of [body].
func TestOneFileAsksWhichBodyMadeTheSteps(t *testing.T) {
	asks := regexp.MustCompile(`Command [!=]= ""|(if|if not|and|or) \$?\.Command\b`)
	var all []string
	for _, pattern := range []string{"*.go", "*.tmpl"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, files...)
	}
	var asking []string
	for _, name := range all {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if asks.Match(text) && name != "body_test.go" {
			asking = append(asking, name)
		}
	}
	if !slices.Equal(asking, []string{"body.go"}) {
		t.Errorf("%q ask which body made the steps: a field of body says it", asking)
	}
}
