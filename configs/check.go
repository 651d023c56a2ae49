package configs

import (
	"fmt"
	"slices"
	"strings"

	"headroom/memory"
)

// check applies the rules that involve more than one key. It skips a rule if the value of
// one of its keys has already been refused, so that one mistake produces only one
// message.
func (l *loader) check() {
	l.required()
	l.only()
	c := l.c
	if c.Model.Kind == "gpt" {
		l.rule(c.Model.Width%max(1, c.Model.Heads) != 0, "model.heads", "model.width",
			"must divide model.width (%d)", c.Model.Width)
		l.wideHeads()
	}
	l.rule(c.Device.Precision == "tf32" && c.Device.Kind == "host", "device.precision", "device.kind", "only a GPU supports it; use fp32 or bf16 on the host")
	l.rule(c.Model.Kind == "gpt" && c.Data.Kind != "text", "data.kind", "model.kind", "model.kind gpt reads only text")
	l.rule(c.Model.Kind == "mlp" && c.Data.Kind == "text", "data.kind", "model.kind", "model.kind mlp reads features: idx or blobs")
	l.rule(c.Data.Kind == "idx" && c.Data.Path == GoRoot, "data.path", "data.kind",
		"set it to the folder with the files train-images-idx3-ubyte and train-labels-idx1-ubyte; "+GetIDX)
	l.rule(c.Data.Kind == "blobs" && c.Data.Samples == 0, "data.samples", "data.kind", "blobs are generated: set the number of samples")
	l.batch()
	l.schedule()
	l.squeeze()
}

// rule reports a problem with key if broken is true, unless the value of key, or of the
// key named by with, has already been refused.
func (l *loader) rule(broken bool, key, with, format string, args ...any) {
	if !broken || l.bad[key] || l.bad[with] {
		return
	}
	where, given := l.origins[key]
	if !given {
		where = l.at(with)
	}
	k, _ := find(key)
	l.add(where, key, inline(k.value(l.c).node()), fmt.Sprintf(format, args...))
}

func (l *loader) required() {
	for _, k := range keys {
		if _, given := l.origins[k.Name]; k.Required && !given && !l.bad[""] {
			l.add(l.where, k.Name, "", "missing; allowed: "+k.Allowed())
		}
	}
}

func (l *loader) only() {
	for _, k := range keys {
		where, given := l.origins[k.Name]
		if !given || l.bad[k.Name] || l.bad[k.Only.Key] || k.applies(l.c) {
			continue
		}
		condition, _ := find(k.Only.Key)
		l.add(where, k.Name, inline(k.value(l.c).node()), fmt.Sprintf("only for %s %s, but this configuration has %s; leave this key out%s",
			k.Only.Key, list(k.Only.Values, "or"), condition.value(l.c).node().Value, l.without(k.Name)))
	}
}

// without returns the advice to leave the key out with --unset, for a file that the
// user may not be able to edit. It returns "" if the key was not given in the file.
func (l *loader) without(key string) string {
	if !strings.HasPrefix(l.origins[key], l.where) {
		return ""
	}
	return fmt.Sprintf(", for example with --unset %s", key)
}

// applies reports whether the key has a meaning in c.
func (k Key) applies(c *Config) bool {
	condition, ok := find(k.Only.Key)
	return !ok || slices.Contains(k.Only.Values, condition.value(c).node().Value)
}

// Applies reports whether the key of the given name has a meaning in c.
func (c *Config) Applies(name string) bool {
	k, ok := find(name)
	return ok && k.applies(c)
}

// MostChannels is the largest number of channels per head that the bfloat16 attention
// kernels of package cuda can handle.
const MostChannels = 128

// wideHeads limits the channels per head if the run computes in bfloat16 and may use a
// GPU. Which device the run uses is known only once the device is opened.
func (l *loader) wideHeads() {
	c := l.c
	channels := c.Model.Width / max(1, c.Model.Heads)
	l.rule(c.Device.Precision == "bf16" && c.Device.Kind != "host" && channels > MostChannels, "model.heads", "model.width",
		"leaves %d channels per head, and with device.precision bf16 a GPU takes at most %d; use more heads, another precision or device.kind host",
		channels, MostChannels)
}

func (l *loader) batch() {
	b := l.c.Batch
	l.rule(b.Micro > b.Effective, "batch.micro", "batch.effective", "must be at most batch.effective (%d)", b.Effective)
	l.rule(b.MinMicro > b.Effective, "batch.min_micro", "batch.effective", "must be at most batch.effective (%d)", b.Effective)
	l.rule(b.Micro > 0 && b.MinMicro > b.Micro && b.Micro <= b.Effective, "batch.min_micro", "batch.micro", "must be at most batch.micro (%d)", b.Micro)
	l.uniform()
}

// uniform refuses a plan with batch.uniform if no divisor of batch.effective lies
// between batch.min_micro and batch.micro. The size of uniform micro-batches must
// divide the effective batch.
func (l *loader) uniform() {
	b := l.c.Batch
	if !b.Uniform || b.Micro < 1 || b.Effective < 1 || l.bad["batch.uniform"] || l.bad["batch.min_micro"] {
		return
	}
	below, above := b.Micro, b.Micro+1
	for b.Effective%below != 0 {
		below--
	}
	for above < b.Effective && b.Effective%above != 0 {
		above++
	}
	l.rule(below < b.MinMicro, "batch.micro", "batch.effective",
		"batch.uniform needs a divisor of batch.effective (%d) between batch.min_micro (%d) and this value, but there is none; the nearest are %d and %d: set batch.min_micro to %[3]d or batch.micro to %[4]d, or choose another batch.effective",
		b.Effective, b.MinMicro, below, above)
}

func (l *loader) schedule() {
	t, s := l.c.Train, l.c.Schedule
	switch {
	case l.bad["train.steps"] || l.bad["train.epochs"] || l.bad[""]:
	case t.Steps == 0 && t.Epochs == 0:
		l.add(l.where, "train.steps", "", "missing; set this or train.epochs")
	case t.Steps > 0 && t.Epochs > 0:
		l.add(l.at("train.epochs"), "train.epochs", fmt.Sprint(t.Epochs), fmt.Sprintf("train.steps is set too (%d); leave one out%s", t.Steps, l.without("train.steps")))
	}
	noWarmup := "; make it shorter, or leave it out" + l.without("schedule.warmup")
	if s.Kind == "constant" {
		l.rule(t.Steps > 0 && s.Warmup > t.Steps, "schedule.warmup", "train.steps", "must be at most train.steps (%d)%s", t.Steps, noWarmup)
		return
	}
	l.rule(s.Min > l.c.Optimizer.LR, "schedule.min", "optimizer.lr", "must be at most optimizer.lr (%g)", l.c.Optimizer.LR)
	l.rule(s.Steps > 0 && s.Warmup >= s.Steps, "schedule.warmup", "schedule.steps", "must be below schedule.steps (%d)%s", s.Steps, noWarmup)
	l.rule(s.Steps == 0 && t.Steps > 0 && s.Warmup >= t.Steps, "schedule.warmup", "train.steps", "must be below train.steps (%d), where the schedule ends%s", t.Steps, noWarmup)
}

// noSqueeze tells the user how to turn a preset's squeeze off.
const noSqueeze = "turn the squeeze off with --set 'device.squeeze=[]'"

func (l *loader) squeeze() {
	d := l.c.Device
	l.rule(d.Kind == "cuda" && len(d.Squeeze) > 0, "device.squeeze", "device.kind", "only the host device can be squeezed; %s, or set device.kind to host", noSqueeze)
	capacity := d.HostCapacity()
	var most memory.Bytes
	for _, s := range d.Squeeze {
		most = max(most, Taken(d.Squeeze, s.From))
	}
	l.rule(most >= capacity, "device.squeeze", "device.capacity", "takes up to %v of %v, which leaves nothing; %s, or raise device.capacity", most, capacity, noSqueeze)
}
