package command

import (
	"fmt"
	"testing"

	"headroom/nvml"
)

func TestVisible(t *testing.T) {
	all := []nvml.GPU{{Index: 0, UUID: "GPU-aa11"}, {Index: 1, UUID: "GPU-bb22"}, {Index: 2, UUID: "GPU-bb33"}}
	for _, c := range []struct {
		value string
		set   bool
		want  string
	}{
		{"", false, "[0 1 2]"},
		{"", true, "[]"},
		{"-1", true, "[]"},
		{"2, 0", true, "[2 0]"},
		{"0,7,1", true, "[0]"},
		{"GPU-bb33,GPU-aa", true, "[2 0]"},
	} {
		got := []int{}
		for _, g := range visible(c.value, c.set, all) {
			got = append(got, g.Index)
		}
		if fmt.Sprint(got) != c.want {
			t.Errorf("%q: %v, want %s", c.value, got, c.want)
		}
	}
}
