package configs

import (
	"cmp"
	"os"
	"path/filepath"

	"headroom/memory"
)

// Config is one run, complete and valid. It comes from [Load]; every field is
// explained at its key in the table of [Keys].
type Config struct {
	Name      string
	Seed      uint64
	Model     Model
	Data      Data
	Batch     Batch
	Optimizer Optimizer
	Schedule  Schedule
	Train     Train
	Device    Device
	Memory    Memory
	Output    Output
}

// Model is what is trained.
type Model struct {
	Kind    string
	Layers  int
	Width   int
	Heads   int
	Context int
	Vocab   int // 0: as many as the data has
	Dropout float64
}

// Data is what the model is trained on.
type Data struct {
	Kind        string
	Path        string
	Glob        string
	Limit       memory.Bytes // 0: everything
	Samples     int          // 0: all there are
	Features    int
	Classes     int
	Fingerprint string // "": any data
}

// Batch is how many samples go into a step.
type Batch struct {
	Effective int
	Micro     int // 0: auto
	MinMicro  int
	Uniform   bool
}

// Optimizer is how weights are updated.
type Optimizer struct {
	Kind                                         string
	LR, Beta1, Beta2, Eps, Momentum, WeightDecay float64
	Clip                                         float64 // 0: not clipped
}

// Schedule is the course of the learning rate.
type Schedule struct {
	Kind   string
	Warmup int
	Steps  int // 0: auto
	Min    float64
}

// Train is how long to train, and what is kept. Exactly one of Steps and Epochs is
// set until the data is opened and epochs become steps.
type Train struct {
	Steps           int
	Epochs          float64
	CheckpointEvery int
	Keep            int
}

// Device is where the run trains.
type Device struct {
	Kind      string
	Ordinal   int          // which GPU
	Precision string       // fp32, tf32 or bf16
	Capacity  memory.Bytes // 0: auto
	Squeeze   []Squeeze
}

// Squeeze is memory that another process holds for a while: from the moment
// that From steps are finished until To steps are.
type Squeeze struct {
	From, To int
	Take     memory.Bytes
}

// Memory is what may be done to make room.
type Memory struct {
	Headroom   float64 // share of the capacity
	Allow      []string
	GrowAfter  int
	Relaunches int
	Waits      int
}

// Output is where runs are written.
type Output struct {
	Dir string
}

// RunsDir is the folder that runs are kept in unless output.dir says otherwise:
// HEADROOM_RUNS_DIR if that variable is set, or else runs in the current folder.
func RunsDir() string { return cmp.Or(os.Getenv("HEADROOM_RUNS_DIR"), "runs") }

// RunDir is the folder of the run.
func (c *Config) RunDir() string { return filepath.Join(c.Output.Dir, c.Name) }

// Precision is what training computes in, "" for float32 throughout.
func (c *Config) Precision() string {
	if c.Device.Precision == "fp32" {
		return ""
	}
	return c.Device.Precision
}

// HostCapacity is the memory that the run may have on the embedded device.
func (d Device) HostCapacity() memory.Bytes {
	if d.Capacity == 0 {
		return hostCapacity
	}
	return d.Capacity
}

// GoRoot is the data.path that stands for the source of the Go toolchain.
const GoRoot = "goroot"

// GetIDX is where the files of the mnist preset come from.
const GetIDX = "Debian's package dataset-fashion-mnist installs such files in /usr/share/datasets/fashion-mnist"
