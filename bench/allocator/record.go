package main

import (
	"context"
	"errors"
	"fmt"

	"headroom/device"
	"headroom/device/host"
	"headroom/memory"
	"headroom/model"
	"headroom/model/data"
	"headroom/recovery"
)

// recorder is a device that records which tensors are allocated and freed. It computes
// nothing: the device that it embeds has hit an error and skips every operation until a
// Sync, which the recorder never passes on. The operating system provides memory only
// when it is first touched, so the tensors take up no space, and a model of any size is
// recorded in moments.
type recorder struct {
	device.Device
	slots  map[device.Addr]int
	next   int
	events []event
}

// event records that the tensor with the number slot was allocated or, if bytes is 0,
// freed. Otherwise bytes is the size of the allocation.
type event struct {
	slot  int
	bytes memory.Bytes
}

// plenty is more memory than any model worth recording takes.
const plenty = 4096 * memory.GiB

func newRecorder() (*recorder, error) {
	dev, err := host.Open(host.Options{Capacity: plenty})
	if err != nil {
		return nil, err
	}
	if err := breakDown(dev); err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	return &recorder{Device: dev, slots: map[device.Addr]int{}}, nil
}

// breakDown makes dev skip its operations, by embedding a token outside the vocabulary.
func breakDown(dev device.Device) error {
	token, err := dev.Alloc(1, device.I32)
	if err != nil {
		return err
	}
	defer dev.Free(token)
	table, err := dev.Alloc(1, device.F32)
	if err != nil {
		return err
	}
	defer dev.Free(table)
	dev.UploadInts(token, []int32{1})
	dev.Embed(table, token, table, table, device.Embed{B: 1, T: 1, C: 1, V: 1})
	return nil
}

// Alloc implements [device.TensorAllocator].
func (r *recorder) Alloc(n int, t device.DType) (device.Tensor, error) {
	x, err := r.Device.Alloc(n, t)
	if err == nil {
		r.slots[x.Addr] = r.next
		r.events = append(r.events, event{r.next, x.Bytes()})
		r.next++
	}
	return x, err
}

// Free implements [device.TensorAllocator].
func (r *recorder) Free(x device.Tensor) {
	r.Device.Free(x)
	r.events = append(r.events, event{slot: r.slots[x.Addr]})
}

// Sync implements [device.Device].
func (r *recorder) Sync() error { return nil }

// Download implements [device.Copier]. It fills dst with 0.
func (r *recorder) Download(dst []float32, _ device.Tensor) error {
	clear(dst)
	return nil
}

// take returns the events recorded since the last take, and restarts the
// numbering of tensors.
func (r *recorder) take() []event {
	events := r.events
	r.events, r.next = nil, 0
	return events
}

// varying is a practically endless data set. Every token is 0, and a [recording]
// changes the length of the samples between steps.
type varying struct{ length, vocab int }

func (v *varying) Len() int                       { return 1 << 30 }
func (v *varying) Shape() data.Shape              { return data.Shape{Tokens: v.length, Classes: v.vocab} }
func (v *varying) Sample(int, *data.Sample) error { return nil }
func (v *varying) Fingerprint() string            { return "zeros" }

// recording records the steps of one model.
type recording struct {
	tape    *recorder
	set     *varying
	trainer *model.Trainer
	micro   int
	state   []memory.Bytes
}

// newRecording builds the model of spec, whose Context and Vocab must be set,
// and records the sizes of its state.
func newRecording(spec model.Spec, micro int) (*recording, error) {
	tape, err := newRecorder()
	if err != nil {
		return nil, err
	}
	set := &varying{spec.Context, spec.Vocab}
	trainer, err := model.New(tape, spec, set)
	if err != nil {
		return nil, errors.Join(err, tape.Close())
	}
	r := &recording{tape: tape, set: set, trainer: trainer, micro: micro}
	for _, e := range tape.take() {
		r.state = append(r.state, e.bytes)
	}
	return r, nil
}

// step records an optimizer step whose samples are each length tokens long.
func (r *recording) step(length int) ([]event, error) {
	r.set.length = length
	_, err := r.trainer.Step(context.Background(), recovery.Plan{Effective: r.micro, World: 1, Micro: r.micro})
	return r.tape.take(), err
}

// ops returns the operations of a step of any length. Their sizes are affine in the
// length: they follow from the steps of lengths least and most. The step of each length
// in checks must agree with them; otherwise ops returns an error.
func (r *recording) ops(least, most int, checks ...int) ([]op, error) {
	low, err := r.step(least)
	if err != nil {
		return nil, err
	}
	high, err := r.step(most)
	if err != nil {
		return nil, err
	}
	ops, err := line(low, high, least, most)
	if err != nil {
		return nil, err
	}
	for _, length := range checks {
		events, err := r.step(length)
		if err != nil {
			return nil, err
		}
		if err := follows(events, ops, length); err != nil {
			return nil, err
		}
	}
	return ops, nil
}

// line fits the size of each operation, as an affine function of the length of the
// samples, to two recorded steps: low, whose length is least, and high, whose length is
// most. It returns an error if they do not fit.
func line(low, high []event, least, most int) ([]op, error) {
	if len(low) != len(high) {
		return nil, fmt.Errorf("%d operations at length %d and %d at %d: not one trace", len(low), least, len(high), most)
	}
	ops := make([]op, len(low))
	for i, e := range low {
		each := int64(high[i].bytes-e.bytes) / int64(most-least)
		ops[i] = op{Slot: e.slot, Each: each, Fixed: int64(e.bytes) - each*int64(least)}
	}
	return ops, errors.Join(follows(low, ops, least), follows(high, ops, most))
}

// follows returns an error that says where events differ from ops at this length.
func follows(events []event, ops []op, length int) error {
	if len(events) != len(ops) {
		return fmt.Errorf("%d operations at length %d, not %d", len(events), length, len(ops))
	}
	for i, e := range events {
		if o := ops[i]; e.slot != o.Slot || e.bytes != o.size(length) {
			return fmt.Errorf("operation %d at length %d: %d bytes of tensor %d, not %d of tensor %d",
				i, length, e.bytes, e.slot, o.size(length), o.Slot)
		}
	}
	return nil
}

func (r *recording) close() error { return r.trainer.Close() }
