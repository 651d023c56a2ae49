package configs

import (
	"testing"

	"headroom/spelling"
)

// TestMisspeltKeys checks what is suggested among the keys that there are.
func TestMisspeltKeys(t *testing.T) {
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
		if got := spelling.NearestKey(word, keyNames()); got != want {
			t.Errorf("%q: %q, want %q", word, got, want)
		}
	}
}
