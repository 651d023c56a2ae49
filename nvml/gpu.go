package nvml

import (
	"encoding/json"
	"maps"
	"strconv"

	"headroom/memory"
)

// Unknown is the value of a number that NVML does not give. Names that it does
// not give are "", and lists that it does not give are nil; a list that has nothing
// in it is empty but not nil.
const Unknown = -1

// UnavailableError is why GPUs cannot be watched. They may still be usable.
type UnavailableError struct{ Reason string }

func (e *UnavailableError) Error() string { return "no NVML: " + e.Reason }

// A GPU is what NVML says about one GPU at one moment. If the GPU is cut into
// MIG slices, it is the whole GPU.
type GPU struct {
	Index          int          `json:"index"` // as NVML and nvidia-smi count; CUDA may count differently
	UUID           string       `json:"uuid"`  // "GPU-" and 32 hexadecimal digits in groups
	Name           string       `json:"name"`
	PCI            string       `json:"pci"` // domain:bus:device.function
	Total          memory.Bytes `json:"total"`
	Free           memory.Bytes `json:"free"`
	Used           memory.Bytes `json:"used"`            // includes the reserved memory if Reserved is Unknown
	Reserved       memory.Bytes `json:"reserved"`        // by the driver; no process can use it
	Utilisation    int          `json:"utilisation"`     // per cent of the last sampling period during which a kernel ran
	Temperature    int          `json:"temperature"`     // °C
	Throttled      []string     `json:"throttled"`       // what holds the clocks back, in words
	UncorrectedECC int64        `json:"uncorrected_ecc"` // memory errors since the driver was loaded
	Holders        []Holder     `json:"holders"`         // largest first
}

// MarshalJSON leaves out what is not known.
func (g GPU) MarshalJSON() ([]byte, error) {
	type plain GPU
	return known(plain(g))
}

// known is v, a struct, as JSON without the fields that NVML does not give.
func known(v any) ([]byte, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, err
	}
	maps.DeleteFunc(fields, func(_ string, v json.RawMessage) bool {
		return string(v) == strconv.Itoa(Unknown) || string(v) == `""` || string(v) == "null"
	})
	return json.Marshal(fields)
}

// Driver holds the versions of what is installed; "" where a version is not
// known.
type Driver struct {
	Version string `json:"version,omitempty"` // such as "580.159.03"
	NVML    string `json:"nvml,omitempty"`
	CUDA    string `json:"cuda,omitempty"` // the newest CUDA version that the driver supports, such as "13.0"
}

// GPUs are all GPUs of the machine, whether CUDA may use them or not. It opens
// no device. An error is a *[UnavailableError]; a value that a GPU does not
// give is Unknown. Safe for concurrent use.
func GPUs() ([]GPU, error) { return gpus() }

// DriverVersions returns the versions of what is installed. An error is a
// *[UnavailableError].
func DriverVersions() (Driver, error) { return driverVersions() }
