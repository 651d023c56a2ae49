package nvml

import (
	"encoding/json"
	"os"
	"testing"

	"headroom/memory"
)

func TestTook(t *testing.T) {
	self := Holder{PID: 1, Name: "headroom", Bytes: 4 * memory.GiB, Self: true}
	python := func(held memory.Bytes) Holder { return Holder{PID: 4711, Name: "python", Bytes: held} }
	for _, c := range []struct {
		name        string
		before, now []Holder
		want        string
	}{
		{"one came", []Holder{self}, []Holder{self, python(21*memory.GiB + 307*memory.MiB)}, "python (pid 4711) took 21.3 GiB"},
		{"one grew", []Holder{self, python(2 * memory.GiB)}, []Holder{self, python(3 * memory.GiB)}, "python (pid 4711) took 1 GiB"},
		{"nothing known of before", nil, []Holder{self, python(memory.GiB)}, "python (pid 4711) took 1 GiB"},
		{"one shrank", []Holder{self, python(2 * memory.GiB)}, []Holder{self, python(memory.GiB)}, ""},
		{"one left", []Holder{self, python(memory.GiB)}, []Holder{self}, ""},
		{"as before", []Holder{self, python(memory.GiB)}, []Holder{self, python(memory.GiB)}, ""},
		{"only this process grew", nil, []Holder{self}, ""},
		{"pids of another namespace", nil, []Holder{python(memory.GiB)}, ""},
		{"nobody known", nil, nil, ""},
		{"name not visible", nil, []Holder{self, {PID: 12, Bytes: memory.GiB}}, "pid 12 took 1 GiB"},
		{"amount not known", nil, []Holder{self, python(Unknown)}, "python (pid 4711) appeared, holding an unknown amount"},
		{"amount not known before", []Holder{self, python(Unknown)}, []Holder{self, python(memory.GiB)}, ""},
		{"amount not known now", []Holder{self, python(memory.GiB)}, []Holder{self, python(Unknown)}, ""},
		{"largest first, the rest counted", []Holder{self}, []Holder{
			{PID: 5, Name: "e", Bytes: Unknown}, {PID: 4, Name: "d", Bytes: memory.MiB}, self,
			{PID: 3, Name: "c", Bytes: memory.GiB}, {PID: 2, Name: "b", Bytes: memory.GiB}, python(2 * memory.GiB),
		}, "python (pid 4711) took 2 GiB, b (pid 2) took 1 GiB, c (pid 3) took 1 GiB, and 2 more"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Took(c.before, c.now); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

func TestHolder(t *testing.T) {
	if h := newHolder(os.Getpid(), memory.GiB); !h.Self || h.Name == "" || h.Bytes != memory.GiB {
		t.Errorf("this process is %+v", h)
	}
	if h := newHolder(1<<30, Unknown); h.Self || h.Name != "" || h.String() != "pid 1073741824" {
		t.Errorf("a process that is not there is %+v, %v", h, h)
	}
}

func TestJSONLeavesOutTheUnknown(t *testing.T) {
	for want, v := range map[string]any{
		`{"index":0}`: GPU{Total: Unknown, Free: Unknown, Used: Unknown, Reserved: Unknown, Utilisation: Unknown, Temperature: Unknown, UncorrectedECC: Unknown},
		`{"free":1099511627776,"holders":[{"bytes":1048576,"name":"python","pid":7},{"pid":8}],"index":1,"temperature":0,"throttled":[],"total":0,"uncorrected_ecc":0,"used":0,"utilisation":0,"uuid":"GPU-1"}`: GPU{
			Index: 1, UUID: "GPU-1", Free: memory.TiB, Reserved: Unknown, Throttled: []string{},
			Holders: []Holder{{PID: 7, Name: "python", Bytes: memory.MiB}, {PID: 8, Bytes: Unknown}}},
		`{"version":"580"}`: Driver{Version: "580"},
	} {
		if got, err := json.Marshal(v); string(got) != want || err != nil {
			t.Errorf("%s, %v\nwant %s", got, err, want)
		}
	}
}
