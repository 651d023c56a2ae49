package configs

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// TestManyProblems checks how many problems are reported for a file that is not a
// configuration at all.
func TestManyProblems(t *testing.T) {
	for n, want := range map[int]string{20: "", 21: "and 1 more", 1234: "and 1,214 more", 20_000: "and 19,980 more"} {
		var content strings.Builder
		content.WriteString(good)
		for i := range n {
			fmt.Fprintf(&content, "zzz%d: 1\n", i)
		}
		_, err := parse([]byte(content.String()), "my.yaml", nil)
		if err == nil {
			t.Fatalf("%d unknown keys were taken", n)
		}
		lines := strings.Split(err.Error(), "\n")
		if !strings.HasPrefix(lines[0], "my.yaml:11: zzz0: ") || !strings.HasPrefix(lines[19], "my.yaml:30: zzz19: ") {
			t.Errorf("%d: the first problems are not reported:\n%.500s", n, err)
		}
		if rest := strings.Join(lines[20:], "\n"); rest != want {
			t.Errorf("%d: after twenty comes %.100q, want %q", n, rest, want)
		}
	}
}

func TestProblemsAreTyped(t *testing.T) {
	_, err := parse([]byte(spoilt("64", "two")), "my.yaml", nil)
	var p *ProblemError
	if !errors.As(err, &p) || p.Where != "my.yaml:3" || p.Key != "model.width" || p.Value != "two" {
		t.Errorf("%+v in %v", p, err)
	}
}
