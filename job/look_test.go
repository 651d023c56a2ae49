package job

import (
	"slices"
	"testing"

	"headroom/memory"
	"headroom/nvml"
)

func TestSeen(t *testing.T) {
	other := memory.Share{Kind: memory.Others, Bytes: 30, PID: 8, Name: "python"}
	for name, c := range map[string]struct {
		holders  []nvml.Holder
		reserved memory.Bytes
		self     memory.Bytes
		others   []memory.Share
	}{
		"alone":                       {[]nvml.Holder{{PID: 7, Bytes: 50}}, 40, 50, nil},
		"beside another":              {[]nvml.Holder{{PID: 7, Bytes: 50}, {PID: 8, Bytes: 30, Name: "python"}}, 40, 50, []memory.Share{other}},
		"its amount is not known":     {[]nvml.Holder{{PID: 7, Bytes: nvml.Unknown}, {PID: 8, Bytes: 30, Name: "python"}}, 40, nvml.Unknown, []memory.Share{other}},
		"another namespace":           {[]nvml.Holder{{PID: 900, Bytes: 50}}, 40, 50, nil},
		"another namespace, two":      {[]nvml.Holder{{PID: 900, Bytes: 50}, {PID: 8, Bytes: 30, Name: "python"}}, 40, 50, []memory.Share{other}},
		"another namespace, which":    {[]nvml.Holder{{PID: 900, Bytes: 50}, {PID: 8, Bytes: 40}}, 40, nvml.Unknown, nil},
		"another namespace, unknown":  {[]nvml.Holder{{PID: 900, Bytes: 50}, {PID: 8, Bytes: nvml.Unknown}}, 40, nvml.Unknown, nil},
		"another namespace, too few":  {[]nvml.Holder{{PID: 900, Bytes: 39}}, 40, nvml.Unknown, nil},
		"the processes are not known": {nil, 40, nvml.Unknown, nil},
	} {
		s := seen(nvml.GPU{Total: 100, Free: 20, Reserved: 3, Holders: c.holders}, 7, c.reserved)
		if s.Total != 100 || s.Free != 20 || s.Driver != 3 || s.Self != c.self || !slices.Equal(s.Others, c.others) {
			t.Errorf("%s: %+v", name, s)
		}
	}
}
