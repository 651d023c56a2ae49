package configs

import (
	"testing"

	"pgregory.net/rapid"
)

func TestNearest(t *testing.T) {
	for word, want := range map[string]string{
		"model.layer":      "model.layers",
		"model.Layers":     "model.layers",
		"batch.mirco":      "batch.micro",
		"bach.micro":       "batch.micro",
		"lr":               "optimizer.lr",
		"model.lr":         "optimizer.lr",
		"learning":         "",
		"clip_norm":        "",
		"kind":             "model.kind",
		"optimiser.kind":   "optimizer.kind",
		"schedule.min_lr":  "schedule.min",
		"train.keeps":      "train.keep",
		"checkpoint_every": "train.checkpoint_every",
		"sede":             "seed",
		"device.zebra":     "",
		"":                 "",
	} {
		if got := nearest(word, keyNames()); got != want {
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
