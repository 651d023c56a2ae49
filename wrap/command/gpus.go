package command

import (
	"slices"
	"strconv"
	"strings"

	"headroom/nvml"
)

// visible returns the GPUs that a command may use, given the value of its
// CUDA_VISIBLE_DEVICES. It reads the value as CUDA does: as indices or prefixes of UUIDs,
// up to the first entry that names no GPU. Indices are taken to be NVML's. These are the
// same as CUDA's if all GPUs are of one model, or if CUDA_DEVICE_ORDER is PCI_BUS_ID. If
// the variable is not set, visible returns all GPUs.
func visible(value string, set bool, all []nvml.GPU) []nvml.GPU {
	if !set {
		return all
	}
	var chosen []nvml.GPU
	for _, word := range strings.Split(value, ",") {
		word = strings.TrimSpace(word)
		n, err := strconv.Atoi(word)
		i := slices.IndexFunc(all, func(g nvml.GPU) bool {
			if err == nil {
				return g.Index == n
			}
			return word != "" && strings.HasPrefix(g.UUID, word)
		})
		if i < 0 {
			break
		}
		chosen = append(chosen, all[i])
	}
	return chosen
}

// GPUs returns the GPUs that the command may use. all lists the GPUs of the machine.
func (c Line) GPUs(all []nvml.GPU) []nvml.GPU {
	value, set := c.Getenv("CUDA_VISIBLE_DEVICES")
	return visible(value, set, all)
}
