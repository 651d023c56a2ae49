package configs

import (
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// fataler is the interface that *testing.T and *rapid.T share.
type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

func sameWhenWritten(t fataler, c *Config) {
	t.Helper()
	text, err := c.YAML()
	if err != nil {
		t.Fatalf("%v", err)
	}
	again, err := parse(text, "run.yaml", nil)
	if err != nil {
		t.Fatalf("%v\nin\n%s", err, text)
	}
	second, err := again.YAML()
	if err != nil || string(second) != string(text) {
		t.Fatalf("written\n%s\nread and written again, %v\n%s", text, err, second)
	}
}

func TestPresetsComeBackAsTheyWere(t *testing.T) {
	for _, name := range Presets() {
		c, err := Load(name, nil)
		if err != nil {
			t.Fatal(err)
		}
		text, err := c.YAML()
		if err != nil {
			t.Fatal(err)
		}
		again, err := parse(text, "run.yaml", nil)
		if err != nil {
			t.Fatal(err)
		}
		// An empty list and a nil list mean the same.
		if len(c.Device.Squeeze) == 0 {
			c.Device.Squeeze, again.Device.Squeeze = nil, nil
		}
		// Values that have no meaning here are not written.
		for _, k := range keys {
			if !k.applies(c) {
				if err := k.value(again).set(k.value(c).node()); err != nil {
					t.Fatal(k.Name, err)
				}
			}
		}
		if !reflect.DeepEqual(again, c) {
			t.Errorf("%s:\n%+v\nread back\n%+v", name, c, again)
		}
	}
}

// TestValuesComeBackAsTheyWere checks that strings that YAML would read as something else
// come back as strings, and that fractions come back exact to the last digit.
func TestValuesComeBackAsTheyWere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, err := parse([]byte(good), "my.yaml", nil)
		if err != nil {
			t.Fatal(err)
		}
		c.Data.Path = rapid.OneOf(
			rapid.SampledFrom([]string{"~", "null", "true", "1e3", "*.go", "&a", "!x", "- a", "a: b", "#", "'", "\"", " x ", "0x1", "…", "<<", "=", "@a", "`"}),
			rapid.StringMatching(`[ -~]{1,80}`),
		).Draw(t, "path")
		c.Memory.Headroom = rapid.Float64Range(0, 0.9).Draw(t, "headroom")
		c.Optimizer.LR = rapid.Float64Range(1e-300, 1e300).Draw(t, "lr")
		c.Device.Capacity = 1 + c.Device.Capacity + 1<<30*3
		text, err := c.YAML()
		if err != nil {
			t.Fatal(err)
		}
		again, err := parse(text, "run.yaml", nil)
		if err != nil {
			t.Fatalf("%v\nin\n%s", err, text)
		}
		if again.Data.Path != c.Data.Path || again.Memory.Headroom != c.Memory.Headroom ||
			again.Optimizer.LR != c.Optimizer.LR || again.Device.Capacity != c.Device.Capacity {
			t.Fatalf("%+v\nread back\n%+v\nfrom\n%s", c, again, text)
		}
	})
}

// TestWrittenWithoutWhatHasNoMeaning checks that run.yaml leaves out keys that have no
// meaning for the run, because people read it, too.
func TestWrittenWithoutWhatHasNoMeaning(t *testing.T) {
	c, err := Load("mlp-tight", nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := c.YAML()
	if err != nil {
		t.Fatal(err)
	}
	for _, gone := range []string{"heads:", "context:", "path:", "glob:", "momentum:", "fingerprint:", "epochs:"} {
		if strings.Contains(string(text), gone) {
			t.Errorf("%s is in\n%s", gone, text)
		}
	}
	for _, there := range []string{"headroom: 8%", "capacity: ", "keep: 3", "micro: 512"} {
		if !strings.Contains(string(text), there) {
			t.Errorf("%s is not in\n%s", there, text)
		}
	}
}
