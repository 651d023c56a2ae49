package job

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"

	"headroom/configs"
	"headroom/cuda"
	"headroom/device"
	"headroom/harness"
	"headroom/memory"
	"headroom/model"
	"headroom/model/data"
	"headroom/recovery"
)

// Job is a configuration whose data has been read, ready to run. Only one goroutine may
// use it.
type Job struct {
	// Config is the configuration, resolved against the data: epochs are converted
	// to steps, the data's path is absolute, and the length of the schedule and the
	// data's fingerprint are filled in. It is also the content of run.yaml.
	Config *configs.Config
	// Set is the data, which every attempt shares.
	Set data.Set

	// Passed, if not nil, is called for every kind of device that device.kind auto
	// would have preferred but did not find.
	Passed func(kind string, why error)

	// Squeezed, if not nil, is called when a squeeze listed in device.squeeze begins
	// or ends, before the first step that it affects. If a later attempt starts from
	// an earlier step, Squeezed may be called for the same change again.
	Squeezed func(s configs.Squeeze, begins bool)

	// Wrap, if not nil, is called with every device that is opened, and returns the
	// device to use in its place. Tests use it to make a device fail.
	Wrap func(device.Device) device.Device

	dev      device.Device // of the newest attempt
	kind     string        // see [Job.Kind]
	uuid     string        // see [Job.identity]
	foreign  memory.Bytes  // memory that squeezes take at the moment
	finished int           // steps finished when the squeezes were last checked; -1 before that
}

// Open reads the data and resolves a copy of the configuration.
func Open(c *configs.Config) (*Job, error) {
	set, err := openData(c)
	if err != nil {
		return nil, err
	}
	r := *c
	if r.Data.Path != configs.GoRoot && r.Data.Kind != "blobs" {
		if r.Data.Path, err = filepath.Abs(r.Data.Path); err != nil {
			return nil, fmt.Errorf("open data: %w", err)
		}
	}
	r.Data.Fingerprint = set.Fingerprint()
	if r.Train.Epochs > 0 {
		steps := math.Ceil(r.Train.Epochs * float64(set.Len()) / float64(r.Batch.Effective))
		r.Train.Steps, r.Train.Epochs = int(steps), 0
	}
	if r.Schedule.Kind != "constant" && r.Schedule.Steps == 0 {
		r.Schedule.Steps = r.Train.Steps
	}
	if _, err := spec(&r).Fit(set.Shape()); err != nil {
		return nil, fmt.Errorf("open model: %w", err)
	}
	return &Job{Config: &r, Set: set, finished: -1}, nil
}

// spec returns the model that c describes and how to train it. It leaves out the sizes
// that depend on the data: [model.Spec.Fit] fills them in.
func spec(c *configs.Config) model.Spec {
	s := model.Spec{
		Kind: model.Kind(c.Model.Kind), Width: c.Model.Width, Layers: c.Model.Layers, Dropout: c.Model.Dropout,
		Mixed: c.Device.Precision == "bf16", Seed: c.Seed,
		Optimizer: model.Optimizer{
			Kind: model.OptimizerKind(c.Optimizer.Kind), LR: c.Optimizer.LR,
			WeightDecay: c.Optimizer.WeightDecay, Clip: c.Optimizer.Clip,
		},
		Schedule: model.Schedule{Kind: model.ScheduleKind(c.Schedule.Kind), Warmup: c.Schedule.Warmup},
	}
	if s.Kind == model.GPT {
		s.Heads, s.Context, s.Vocab = c.Model.Heads, c.Model.Context, c.Model.Vocab
	}
	if s.Optimizer.Kind == model.AdamW {
		s.Optimizer.Beta1, s.Optimizer.Beta2, s.Optimizer.Eps = c.Optimizer.Beta1, c.Optimizer.Beta2, c.Optimizer.Eps
	} else {
		s.Optimizer.Momentum = c.Optimizer.Momentum
	}
	if s.Schedule.Kind != model.Constant {
		s.Schedule.Steps, s.Schedule.Min = c.Schedule.Steps, c.Schedule.Min
	}
	return s
}

// plan returns the plan that c asks for. Its Micro is 0 if batch.micro is auto.
func plan(c *configs.Config) recovery.Plan {
	return recovery.Plan{Effective: c.Batch.Effective, World: 1, Micro: c.Batch.Micro, Uniform: c.Batch.Uniform}
}

// policy returns what memory.* and batch.min_micro allow headroom to do when memory runs
// out.
func policy(c *configs.Config) recovery.Policy {
	p := recovery.Policy{
		MinMicro:  c.Batch.MinMicro,
		Headroom:  c.Memory.Headroom,
		Recompute: slices.Contains(c.Memory.Allow, "recompute"),
		GrowAfter: c.Memory.GrowAfter,
	}
	if slices.Contains(c.Memory.Allow, "relaunch") {
		p.Relaunches = c.Memory.Relaunches
	}
	if slices.Contains(c.Memory.Allow, "wait") {
		p.Waits = c.Memory.Waits
	}
	return p
}

// Session returns the options of a session as far as the configuration decides them.
func (j *Job) Session() harness.SessionOptions {
	c := j.Config
	return harness.SessionOptions{Steps: c.Train.Steps, Plan: plan(c), Policy: policy(c), Precision: c.Precision()}
}

// Run returns the options of a run as far as the configuration decides them, and sets the
// functions through which the run uses this job.
func (j *Job) Run() harness.RunOptions {
	c := j.Config
	return harness.RunOptions{
		CheckpointEvery: c.Train.CheckpointEvery,
		Keep:            c.Train.Keep,
		Open:            j.open,
		Gone:            isGone,
		Observe:         j.observe,
		BeforeStep:      j.beforeStep,
	}
}

// Find returns the options of a search as far as the configuration decides them.
func (j *Job) Find() harness.FindOptions {
	return harness.FindOptions{Plan: plan(j.Config), Policy: policy(j.Config)}
}

// CheckpointSize returns roughly how much disk space one checkpoint takes: it holds the
// weights and the optimizer's state in float32.
func (j *Job) CheckpointSize() memory.Bytes {
	s, err := spec(j.Config).Fit(j.Set.Shape())
	if err != nil {
		return 0 // cannot happen: Open has made the same call
	}
	r := s.Requirements()
	return 4*memory.Bytes(r.Parameters) + r.Optimizer
}

// Trainer builds the model on a newly opened device, for a search. The caller closes the
// trainer, which also closes the device.
func (j *Job) Trainer(ctx context.Context) (harness.Trainer, error) { return j.open(ctx) }

// open builds the trainer of an attempt on a newly opened device. Squeezes that were in
// effect on the previous device take the same amount of memory from this one.
func (j *Job) open(context.Context) (harness.Trainer, error) {
	dev, kind, err := openDevice(j.Config, j.Passed)
	j.kind = kind
	if err != nil {
		return nil, err
	}
	j.uuid = j.identity()
	if j.Wrap != nil {
		dev = j.Wrap(dev)
	}
	t, err := j.build(dev)
	if err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	j.dev = dev
	return t, nil
}

// identity returns the UUID that NVML reports for the GPU that was opened, or "" if the
// device is not a GPU or NVML does not know it.
func (j *Job) identity() string {
	if j.kind != "cuda" {
		return ""
	}
	gpu, err := cuda.GPUOf(j.Config.Device.Ordinal)
	if err != nil {
		return ""
	}
	return gpu.UUID
}

func isGone(err error) bool {
	var gone *device.GoneError
	return errors.As(err, &gone)
}

func (j *Job) build(dev device.Device) (*model.Trainer, error) {
	if _, ok := dev.(squeezable); !ok && len(j.Config.Device.Squeeze) > 0 {
		return nil, fmt.Errorf("open device %s: device.squeeze: only the host device can be squeezed; leave device.squeeze out or set device.kind to host", dev.Name())
	}
	press(dev, j.foreign)
	return model.New(dev, spec(j.Config), j.Set)
}

// Device returns the name of the newest attempt's device, or "" before the first attempt.
func (j *Job) Device() string {
	if j.dev == nil {
		return ""
	}
	return j.dev.Name()
}

// Kind returns the kind of the device that was last opened, or that could not be opened:
// "host" or "cuda". It returns "auto" if neither kind is available, and "" before the first
// attempt.
func (j *Job) Kind() string { return j.kind }

func (j *Job) beforeStep(finished int) {
	if now := configs.Taken(j.Config.Device.Squeeze, finished); now != j.foreign {
		j.foreign = now
		press(j.dev, now)
	}
	for _, s := range j.Config.Device.Squeeze {
		if begins := s.Acts(finished); j.Squeezed != nil && begins != s.Acts(j.finished) {
			j.Squeezed(s, begins)
		}
	}
	j.finished = finished
}

// squeezable is a device that can act as if another process held some of its memory.
type squeezable interface{ SetForeign(memory.Bytes) }

func press(dev device.Device, n memory.Bytes) {
	if d, ok := dev.(squeezable); ok {
		d.SetForeign(n)
	}
}
