package configs

import "headroom/memory"

// Key is one setting. The table keys is the only list of all settings: the loader, the
// written run.yaml, docs/config.md and the hints are derived from it.
type Key struct {
	Name     string // "batch.micro"
	Default  string // as written in a file; "" if there is none
	Doc      string // one sentence, without the full stop
	Fixed    bool   // may not change within a run
	Required bool   // has to be given
	Only     Only   // the key has a meaning only if this condition holds
	Secret   bool   // its value may be a secret, and is never written

	value func(*Config) value
}

// Only is the condition that another key has one of the given values. The zero value
// always holds.
type Only struct {
	Key    string
	Values []string
}

// Allowed says in words which values the key takes.
func (k Key) Allowed() string { return k.value(new(Config)).allowed() }

// Keys returns all settings, in the order in which they are documented and written. The
// caller must not change the result.
func Keys() []Key { return keys }

const million = 1_000_000

var (
	forGPT   = Only{"model.kind", []string{"gpt"}}
	forGPU   = Only{"device.kind", []string{"auto", "cuda"}}
	forText  = Only{"data.kind", []string{"text"}}
	forBlobs = Only{"data.kind", []string{"blobs"}}
	forAdamW = Only{"optimizer.kind", []string{"adamw"}}
	forSGD   = Only{"optimizer.kind", []string{"sgd"}}
	forDecay = Only{"schedule.kind", []string{"cosine", "linear"}}
)

var keys = []Key{
	{Name: "name", Doc: "name of the run and of its folder; the file's name without .yaml if not given",
		value: func(c *Config) value { return name{&c.Name} }},
	{Name: "seed", Default: "1", Fixed: true, Doc: "seeds the initial weights, dropout, generated data and the order of samples",
		value: func(c *Config) value { return whole[uint64]{p: &c.Seed, max: 1<<64 - 1} }},

	{Name: "model.kind", Required: true, Fixed: true, Doc: "gpt: a decoder-only transformer like GPT-2, over bytes; mlp: a multi-layer perceptron, over features",
		value: func(c *Config) value { return choice{&c.Model.Kind, []string{"gpt", "mlp"}} }},
	{Name: "model.layers", Default: "2", Fixed: true, Doc: "transformer blocks, or hidden layers",
		value: func(c *Config) value { return whole[int]{p: &c.Model.Layers, min: 1, max: 1000} }},
	{Name: "model.width", Default: "64", Fixed: true, Doc: "channels, or units of each hidden layer",
		value: func(c *Config) value { return whole[int]{p: &c.Model.Width, min: 1, max: million} }},
	{Name: "model.heads", Default: "4", Fixed: true, Only: forGPT, Doc: "attention heads; must divide model.width",
		value: func(c *Config) value { return whole[int]{p: &c.Model.Heads, min: 1, max: 1000} }},
	{Name: "model.context", Default: "64", Fixed: true, Only: forGPT, Doc: "tokens per sample",
		value: func(c *Config) value { return whole[int]{p: &c.Model.Context, min: 1, max: million} }},
	{Name: "model.vocab", Default: "256", Fixed: true, Only: forGPT, Doc: "size of the vocabulary; text is bytes, so 256 is enough",
		value: func(c *Config) value { return whole[int]{p: &c.Model.Vocab, min: 256, max: million} }},
	{Name: "model.dropout", Default: "0", Fixed: true, Doc: "probability of dropping an activation",
		value: func(c *Config) value { return number{p: &c.Model.Dropout, below: 1} }},

	{Name: "data.kind", Required: true, Fixed: true, Doc: "text: files, one token per byte; idx: images and labels in the MNIST format; blobs: points around one centre per class, generated from the seed without any files",
		value: func(c *Config) value { return choice{&c.Data.Kind, []string{"text", "idx", "blobs"}} }},
	{Name: "data.path", Default: "goroot", Only: Only{"data.kind", []string{"text", "idx"}}, Doc: "text: a file or a folder, or goroot for the source of the installed Go toolchain; idx: the folder with train-images-idx3-ubyte and train-labels-idx1-ubyte, each optionally gzipped (.gz)",
		value: func(c *Config) value { return text{&c.Data.Path} }},
	{Name: "data.glob", Default: "*", Fixed: true, Only: forText, Doc: "names of the files to read in a folder; names that begin with a dot are always skipped",
		value: func(c *Config) value { return glob{&c.Data.Glob} }},
	{Name: "data.limit", Default: "all", Fixed: true, Only: forText, Doc: "how much text to read, taking files in lexical order",
		value: func(c *Config) value { return size{&c.Data.Limit, "all"} }},
	{Name: "data.samples", Default: "all", Fixed: true, Only: Only{"data.kind", []string{"idx", "blobs"}}, Doc: "how many samples to use, starting with the first; must be given for blobs",
		value: func(c *Config) value { return whole[int]{p: &c.Data.Samples, min: 1, max: 1000 * million, zero: "all"} }},
	{Name: "data.features", Default: "64", Fixed: true, Only: forBlobs, Doc: "features per sample",
		value: func(c *Config) value { return whole[int]{p: &c.Data.Features, min: 1, max: million} }},
	{Name: "data.classes", Default: "10", Fixed: true, Only: Only{"data.kind", []string{"idx", "blobs"}}, Doc: "number of classes; labels must be less than this",
		value: func(c *Config) value { return whole[int]{p: &c.Data.Classes, min: 2, max: 256} }},
	{Name: "data.fingerprint", Fixed: true, Doc: "fingerprint of the data; written by the run, so that it never continues with different data",
		value: func(c *Config) value { return text{&c.Data.Fingerprint} }},

	{Name: "batch.effective", Default: "64", Fixed: true, Doc: "samples per optimizer step; never changes during a run",
		value: func(c *Config) value { return whole[int]{p: &c.Batch.Effective, min: 1, max: million} }},
	{Name: "batch.micro", Default: "auto", Doc: "samples in one forward and backward pass; auto searches for the largest micro-batch that fits",
		value: func(c *Config) value { return whole[int]{p: &c.Batch.Micro, min: 1, max: million, zero: "auto"} }},
	{Name: "batch.min_micro", Default: "1", Doc: "smallest micro-batch that recovery may choose",
		value: func(c *Config) value { return whole[int]{p: &c.Batch.MinMicro, min: 1, max: million} }},
	{Name: "batch.uniform", Default: "false", Doc: "whether all micro-batches of a step have the same size, which then divides batch.effective",
		value: func(c *Config) value { return boolean{&c.Batch.Uniform} }},

	{Name: "optimizer.kind", Default: "adamw", Fixed: true, Doc: "rule for updating weights",
		value: func(c *Config) value { return choice{&c.Optimizer.Kind, []string{"adamw", "sgd"}} }},
	{Name: "optimizer.lr", Default: "1e-3", Fixed: true, Doc: "learning rate after warm-up",
		value: func(c *Config) value { return number{p: &c.Optimizer.LR, above: true} }},
	{Name: "optimizer.beta1", Default: "0.9", Fixed: true, Only: forAdamW, Doc: "decay of the first moment",
		value: func(c *Config) value { return number{p: &c.Optimizer.Beta1, above: true, below: 1} }},
	{Name: "optimizer.beta2", Default: "0.95", Fixed: true, Only: forAdamW, Doc: "decay of the second moment",
		value: func(c *Config) value { return number{p: &c.Optimizer.Beta2, above: true, below: 1} }},
	{Name: "optimizer.eps", Default: "1e-8", Fixed: true, Only: forAdamW, Doc: "added to the root of the second moment",
		value: func(c *Config) value { return number{p: &c.Optimizer.Eps, above: true, below: 1} }},
	{Name: "optimizer.momentum", Default: "0", Fixed: true, Only: forSGD, Doc: "decay of the momentum",
		value: func(c *Config) value { return number{p: &c.Optimizer.Momentum, below: 1} }},
	{Name: "optimizer.weight_decay", Default: "0", Fixed: true, Doc: "decoupled for adamw, added to the gradient for sgd; applied to matrices only",
		value: func(c *Config) value { return number{p: &c.Optimizer.WeightDecay} }},
	{Name: "optimizer.clip", Default: "0", Fixed: true, Doc: "maximum global norm of the gradients; 0 turns clipping off",
		value: func(c *Config) value { return number{p: &c.Optimizer.Clip} }},

	{Name: "schedule.kind", Default: "constant", Fixed: true, Doc: "shape of the learning-rate schedule after warm-up",
		value: func(c *Config) value { return choice{&c.Schedule.Kind, []string{"constant", "cosine", "linear"}} }},
	{Name: "schedule.warmup", Default: "0", Fixed: true, Doc: "steps over which the learning rate rises to optimizer.lr",
		value: func(c *Config) value { return whole[int]{p: &c.Schedule.Warmup, max: 1000 * million} }},
	{Name: "schedule.steps", Default: "auto", Fixed: true, Only: forDecay, Doc: "step at which schedule.min is reached; auto is the last step of the run",
		value: func(c *Config) value {
			return whole[int]{p: &c.Schedule.Steps, min: 1, max: 1000 * million, zero: "auto"}
		}},
	{Name: "schedule.min", Default: "0", Fixed: true, Only: forDecay, Doc: "learning rate at the end",
		value: func(c *Config) value { return number{p: &c.Schedule.Min} }},

	{Name: "train.steps", Doc: "optimizer steps of the whole run; may be raised later to train longer. Set either this or train.epochs",
		value: func(c *Config) value { return whole[int]{p: &c.Train.Steps, min: 1, max: 1000 * million} }},
	{Name: "train.epochs", Doc: "passes through the data, rounded up to whole steps. Set either this or train.steps",
		value: func(c *Config) value { return number{p: &c.Train.Epochs, above: true, below: million} }},
	{Name: "train.checkpoint_every", Default: "50", Doc: "steps between checkpoints; 0 saves only at the end and when interrupted",
		value: func(c *Config) value { return whole[int]{p: &c.Train.CheckpointEvery, max: 1000 * million} }},
	{Name: "train.keep", Default: "3", Doc: "number of newest checkpoints to keep",
		value: func(c *Config) value { return whole[int]{p: &c.Train.Keep, min: 1, max: million} }},

	{Name: "device.kind", Default: "auto", Doc: "auto picks the best available; host: the CPU and a part of its memory; cuda: an NVIDIA GPU",
		value: func(c *Config) value { return choice{&c.Device.Kind, []string{"auto", "host", "cuda"}} }},
	{Name: "device.ordinal", Default: "0", Only: forGPU, Doc: "CUDA's index for the GPU, counting only the GPUs that CUDA_VISIBLE_DEVICES leaves visible",
		value: func(c *Config) value { return whole[int]{p: &c.Device.Ordinal, max: 1000} }},
	{Name: "device.precision", Default: "fp32", Doc: "fp32: float32 throughout; tf32: matrix products on a GPU round their inputs to TensorFloat-32; bf16: mixed precision, activations and products in bfloat16, weights and sums in float32",
		value: func(c *Config) value { return choice{&c.Device.Precision, []string{"fp32", "tf32", "bf16"}} }},
	{Name: "device.capacity", Default: "auto", Doc: "memory that the run may use; auto is all that a GPU has, and " + hostCapacity.String() + " on the host",
		value: func(c *Config) value { return size{&c.Device.Capacity, "auto"} }},
	{Name: "device.squeeze", Default: "[]", Doc: "memory to take away during a range of steps, as another process would; only on the host",
		value: func(c *Config) value { return squeezes{&c.Device.Squeeze} }},

	{Name: "memory.headroom", Default: "8%", Doc: "share of the capacity to leave unused when a micro-batch is chosen",
		value: func(c *Config) value { return share{&c.Memory.Headroom, 90} }},
	{Name: "memory.allow", Default: "[relaunch, wait]", Doc: "remedies beyond a smaller micro-batch. recompute: compute activations again in the backward pass, which is slower and takes less memory; relaunch: start again from a checkpoint; wait: wait for other processes to leave",
		value: func(c *Config) value { return subset{&c.Memory.Allow, []string{"recompute", "relaunch", "wait"}} }},
	{Name: "memory.grow_after", Default: "10", Doc: "steps without a failure before a larger micro-batch is tried again; 0 never tries",
		value: func(c *Config) value { return whole[int]{p: &c.Memory.GrowAfter, max: million} }},
	{Name: "memory.relaunches", Default: "3", Doc: "how many times a run may be relaunched to make room",
		value: func(c *Config) value { return whole[int]{p: &c.Memory.Relaunches, max: million} }},
	{Name: "memory.waits", Default: "10", Doc: "how many times in a row to wait for other processes before giving up",
		value: func(c *Config) value { return whole[int]{p: &c.Memory.Waits, max: million} }},

	{Name: "output.dir", Default: "headroom-runs", Doc: "folder that contains the run's own folder, named after the run; the variable HEADROOM_RUNS_DIR changes the default",
		value: func(c *Config) value { return text{&c.Output.Dir} }},

	{Name: "notify", Secret: true, Doc: "who is told when the run ends or first survives a failure: commands, URLs, and @FILE with one in each line, as in [ntfy://TOPIC]; see notifications.md",
		value: func(c *Config) value { return receivers{&c.Notify} }},
}

// hostCapacity is the memory that a run may use on the host with device.capacity auto.
// It is a fixed amount, not a share of the machine's memory, so that a run behaves the
// same on every machine.
const hostCapacity = memory.GiB
