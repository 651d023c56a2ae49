package job

import (
	"slices"
	"strings"

	"headroom/memory"
	"headroom/nvml"
)

// look returns what the driver reports of the memory of the GPU with the given UUID, as seen by the
// process pid, whose allocator has reserved so much there. It returns nil without NVML, and for a slice of a GPU, of which NVML
// reports only the whole.
func look(uuid string, pid int, reserved memory.Bytes) *memory.Seen {
	all, err := nvml.GPUs()
	if err != nil {
		return nil
	}
	bare := func(uuid string) string { return strings.TrimPrefix(uuid, "GPU-") } // PyTorch leaves it out
	at := slices.IndexFunc(all, func(g nvml.GPU) bool { return g.UUID != "" && bare(g.UUID) == bare(uuid) })
	if at < 0 {
		return nil
	}
	return seen(all[at], pid, reserved)
}

// seen returns what g says to the process pid. The numbers that NVML has may be those of another
// namespace. Then the process is the only one that holds as much as its allocator has reserved, if
// there is only one.
func seen(g nvml.GPU, pid int, reserved memory.Bytes) *memory.Seen {
	s := &memory.Seen{Total: g.Total, Free: g.Free, Driver: g.Reserved, Self: nvml.Unknown}
	own := slices.IndexFunc(g.Holders, func(h nvml.Holder) bool { return h.PID == pid })
	if own < 0 {
		large := func(h nvml.Holder) bool { return h.Bytes == nvml.Unknown || h.Bytes >= reserved }
		if own = slices.IndexFunc(g.Holders, large); own < 0 || slices.ContainsFunc(g.Holders[own+1:], large) {
			return s
		}
	}
	for i, h := range g.Holders {
		if i == own {
			s.Self = h.Bytes
		} else {
			s.Others = append(s.Others, memory.Share{Kind: memory.Others, Bytes: h.Bytes, PID: h.PID, Name: h.Name})
		}
	}
	return s
}
