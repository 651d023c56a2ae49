package spelling

import (
	"testing"

	"pgregory.net/rapid"
)

func TestNearest(t *testing.T) {
	commands := []string{"q", "run", "find", "status", "report", "resume", "check", "config", "profiles", "help"}
	for word, want := range map[string]string{
		"rnu":    "run",
		"Run":    "run",
		"fnid":   "find",
		"stats":  "status",
		"reprot": "report",
		"rseume": "resume",
		"start":  "",
		"train":  "",
		"xyzzy":  "",
		"x":      "",
		"":       "",
	} {
		if got := Nearest(word, commands); got != want {
			t.Errorf("%q: %q, want %q", word, got, want)
		}
	}
	if got := Nearest("tran.py", []string{"other.py", "train.py"}); got != "train.py" {
		t.Errorf("a name that ends like others: %q", got)
	}
	if got := Nearest("ab", []string{"ac", "ad"}); got != "ac" {
		t.Errorf("two that are equally near: %q", got)
	}
}

func TestNearestKey(t *testing.T) {
	keys := []string{"seed", "model.kind", "model.layers", "batch.micro", "optimizer.lr"}
	for word, want := range map[string]string{
		"model.layer": "model.layers",
		"bach.micro":  "batch.micro",
		"lr":          "optimizer.lr",
		"model.lr":    "optimizer.lr",
		"kind":        "model.kind",
		"sede":        "seed",
		"learning":    "",
		"":            "",
	} {
		if got := NearestKey(word, keys); got != want {
			t.Errorf("%q: %q, want %q", word, got, want)
		}
	}
}

func TestDistance(t *testing.T) {
	for _, test := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"abc", "", 3}, {"", "ab", 2}, {"micro", "mirco", 1}, {"kitten", "sitting", 3}, {"ca", "abc", 3},
	} {
		if got := distance(test.a, test.b); got != test.want {
			t.Errorf("%q to %q: %d, want %d", test.a, test.b, got, test.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringMatching(`[ab]{0,8}`)
		a, b := word.Draw(t, "a"), word.Draw(t, "b")
		d := distance(a, b)
		if d != distance(b, a) || (d == 0) != (a == b) || d > max(len(a), len(b)) || d < max(len(a), len(b))-min(len(a), len(b)) {
			t.Fatalf("%q to %q: %d", a, b, d)
		}
	})
}
