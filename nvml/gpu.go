package nvml

import (
	"encoding/json"
	"maps"
	"strconv"

	"headroom/memory"
)

// Unknown is the value of a number that NVML does not report. A name that NVML does
// not report is "", and a list that it does not report is nil. An empty list that is
// not nil is known to be empty.
const Unknown = -1

// UnavailableError reports why GPUs cannot be observed through NVML. The GPUs
// themselves may still be usable.
type UnavailableError struct{ Reason string }

func (e *UnavailableError) Error() string { return "no NVML: " + e.Reason }

// A GPU is what NVML reports about one GPU at one moment. If the GPU is divided into
// MIG slices, the values are those of the whole GPU.
type GPU struct {
	Index          int          `json:"index"` // the GPU's number in NVML and nvidia-smi; CUDA may number GPUs differently
	UUID           string       `json:"uuid"`  // "GPU-" and 32 hexadecimal digits in groups
	Name           string       `json:"name"`
	PCI            string       `json:"pci"` // domain:bus:device.function
	Total          memory.Bytes `json:"total"`
	Free           memory.Bytes `json:"free"`
	Used           memory.Bytes `json:"used"`            // includes the reserved memory if Reserved is Unknown
	Reserved       memory.Bytes `json:"reserved"`        // by the driver; no process can use it
	Utilisation    int          `json:"utilisation"`     // per cent of the last sampling period during which a kernel ran
	Temperature    int          `json:"temperature"`     // °C
	Throttled      []string     `json:"throttled"`       // reasons why the clocks are held back, in words
	UncorrectedECC int64        `json:"uncorrected_ecc"` // memory errors since the driver was loaded
	Holders        []Holder     `json:"holders"`         // largest first
}

// MarshalJSON leaves out the values that are not known.
func (g GPU) MarshalJSON() ([]byte, error) {
	type plain GPU
	return known(plain(g))
}

// known returns the struct v as JSON, without the fields that NVML does not report.
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

// Driver holds the versions of the installed driver and libraries. A version that is
// not known is "".
type Driver struct {
	Version string `json:"version,omitempty"` // such as "580.159.03"
	NVML    string `json:"nvml,omitempty"`
	CUDA    string `json:"cuda,omitempty"` // the newest CUDA version that the driver supports, such as "13.0"
}

// GPUs returns all GPUs of the machine, including any that this process cannot use
// through CUDA. It opens no device. Any error is an *[UnavailableError]; a number that a
// GPU does not report is [Unknown]. GPUs is safe for concurrent use.
func GPUs() ([]GPU, error) { return gpus() }

// DriverVersions returns the versions of the installed driver and libraries. Any
// error is an *[UnavailableError].
func DriverVersions() (Driver, error) { return driverVersions() }
