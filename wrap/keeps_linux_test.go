package wrap

import (
	"errors"
	"strings"
	"testing"
)

// TestClaim checks that only one command at a time can claim a place for its checkpoints.
func TestClaim(t *testing.T) {
	at := func(words, dir string) *Match {
		m, err := Recognise(Command{Args: strings.Fields("python run_clm.py --per_device_train_batch_size 8 " + words), Dir: dir}, Builtin(), Given{})
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	dir := t.TempDir()
	first, err := at("--output_dir out", dir).Claim()
	if err != nil || first == nil {
		t.Fatal(first, err)
	}
	for _, c := range []struct {
		words, dir string
		taken      bool
	}{
		{"--output_dir out", dir, true},
		{"--output_dir " + dir + "/x/../out/", "/", true},
		{"--output_dir other", dir, false},
		{"--output_dir out", dir + "/x", false},
	} {
		claim, err := at(c.words, c.dir).Claim()
		var taken *KeptElsewhereError
		if errors.As(err, &taken) != c.taken || (claim == nil) != c.taken {
			t.Errorf("%+v: %v, %v", c, claim, err)
		}
		if claim != nil && claim.Close() != nil {
			t.Error("close")
		}
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if again, err := at("--output_dir out", dir).Claim(); err != nil || again.Close() != nil {
		t.Errorf("it is free again: %v", err)
	}
}
