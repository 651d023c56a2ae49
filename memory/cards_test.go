package memory

import (
	"slices"
	"testing"
)

// TestCards checks that names are found in any case, and that a card's memory is a little less than it is sold with.
func TestCards(t *testing.T) {
	for name, sold := range map[string]Bytes{"a100-40": 40, "H100": 80, " 4090 ": 24, "t4": 16, "v100-32": 32, "l4": 24} {
		c, known := FindCard(name)
		if !known || c.Memory > sold*GiB || c.Memory < sold*GiB*9/10 {
			t.Errorf("%s is known: %t, with %v; it is sold with %v", name, known, c.Memory, sold*GiB)
		}
	}
	if c, known := FindCard("a100"); known { // of 40 or of 80 GiB
		t.Errorf("a100 is %v", c)
	}
	names := CardNames()
	if slices.Sort(names); len(slices.Compact(slices.Clone(names))) != len(names) || slices.Contains(names, "") {
		t.Errorf("names: %q", names)
	}
}
