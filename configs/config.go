package configs

import (
	"cmp"
	"os"
	"path/filepath"

	"headroom/memory"
)

// Config is the complete and valid configuration of one run, as [Load] returns it. For
// what a field means, see its key in [Keys].
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
	Notify    []string
}

// Model describes the model to train.
type Model struct {
	Kind    string
	Layers  int
	Width   int
	Heads   int
	Context int
	Vocab   int // size of the vocabulary
	Dropout float64
}

// Data describes the data to train on.
type Data struct {
	Kind        string
	Path        string
	Glob        string
	Limit       memory.Bytes // 0: all of the text
	Samples     int          // 0: all samples that there are
	Features    int
	Classes     int
	Fingerprint string // "": any data
}

// Batch says how many samples go into a step, and into a micro-batch.
type Batch struct {
	Effective int
	Micro     int // 0: auto
	MinMicro  int
	Uniform   bool
}

// Optimizer says how the weights are updated.
type Optimizer struct {
	Kind                                         string
	LR, Beta1, Beta2, Eps, Momentum, WeightDecay float64
	Clip                                         float64 // 0: not clipped
}

// Schedule describes the learning rate over the steps.
type Schedule struct {
	Kind   string
	Warmup int
	Steps  int // 0: auto
	Min    float64
}

// Train says how long to train, how often to save a checkpoint, and how many
// checkpoints to keep. Exactly one of Steps and Epochs is set. Once the data has been
// opened, epochs are converted to steps.
type Train struct {
	Steps           int
	Epochs          float64
	CheckpointEvery int
	Keep            int
}

// Device describes the device to train on.
type Device struct {
	Kind      string
	Ordinal   int          // which GPU
	Precision string       // fp32, tf32 or bf16
	Capacity  memory.Bytes // 0: auto
	Squeeze   []Squeeze
}

// Squeeze takes memory away from the run for a while, as another process would: from
// the moment when From steps are finished until To steps are finished.
type Squeeze struct {
	From, To int
	Take     memory.Bytes
}

// Memory says what the run may do to make room.
type Memory struct {
	Headroom   float64 // share of the capacity
	Allow      []string
	GrowAfter  int
	Relaunches int
	Waits      int
}

// Output says where runs are written.
type Output struct {
	Dir string
}

// RunsDir returns the folder that runs are kept in unless output.dir names another one:
// the value of the environment variable HEADROOM_RUNS_DIR, or "headroom-runs" if it is not set:
// a name that no script has for a folder of its own, unlike "runs", which is TensorBoard's.
func RunsDir() string { return cmp.Or(os.Getenv("HEADROOM_RUNS_DIR"), "headroom-runs") }

// RunDir returns the folder of the run.
func (c *Config) RunDir() string { return filepath.Join(c.Output.Dir, c.Name) }

// Precision returns the precision in which training computes: "tf32" or "bf16", or ""
// for float32 throughout.
func (c *Config) Precision() string {
	if c.Device.Precision == "fp32" {
		return ""
	}
	return c.Device.Precision
}

// HostCapacity returns how much memory the run may use on the host device.
func (d Device) HostCapacity() memory.Bytes {
	if d.Capacity == 0 {
		return hostCapacity
	}
	return d.Capacity
}

// GoRoot is the value of data.path that means the source of the installed Go toolchain.
const GoRoot = "goroot"

// GetIDX tells the user where to get the files that the mnist preset reads.
const GetIDX = "Debian's package dataset-fashion-mnist installs such files in /usr/share/datasets/fashion-mnist"
