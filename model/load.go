package model

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"

	"headroom/harness"
)

// Load implements [harness.Trainer]. It reads the input twice: first to check all of it,
// then to load it. So a checkpoint that is truncated or garbled, or belongs to another
// model, leaves the trainer unchanged. If it belongs to another model, the error is a
// *[harness.MismatchError]. Input that is not an [io.Seeker] cannot be read twice and is
// held in host memory. If reading fails the second time, the trainer refuses every step
// until another Load succeeds.
func (t *Trainer) Load(r io.Reader) error {
	input, ok := r.(io.ReadSeeker)
	if !ok {
		all, err := io.ReadAll(r)
		if err != nil {
			return fmt.Errorf("load: %w", err)
		}
		input = bytes.NewReader(all)
	}
	start, err := input.Seek(0, io.SeekCurrent)
	if err != nil {
		return fmt.Errorf("load: %w", err)
	}
	step, position, err := t.verify(input)
	if err != nil {
		return fmt.Errorf("load: %w", err)
	}
	if _, err := input.Seek(start, io.SeekStart); err != nil {
		return fmt.Errorf("load: %w", err)
	}
	if err := t.take(input); err != nil {
		t.broken = fmt.Errorf("load: the checkpoint passed its check, but then could not be read: %w", err)
		return t.broken
	}
	t.step, t.position, t.broken = step, position, nil
	return nil
}

// verify reads a whole checkpoint and changes nothing. It returns the step and
// the position at which the checkpoint was made.
func (t *Trainer) verify(r io.Reader) (step int, position int64, err error) {
	sum := newChecksum()
	h, err := readHeader(io.TeeReader(r, sum))
	if err != nil {
		return 0, 0, err
	}
	if err := checkVersion(h); err != nil {
		return 0, 0, err
	}
	if _, err := io.CopyN(sum, r, int64(h.size())-4); err != nil {
		return 0, 0, cutShort(err)
	}
	var want [4]byte
	if _, err := io.ReadFull(r, want[:]); err != nil {
		return 0, 0, cutShort(err)
	}
	if binary.LittleEndian.Uint32(want[:]) != sum.Sum32() {
		return 0, 0, errors.New("the checkpoint is garbled: its checksum does not match its contents")
	}
	if n, err := io.Copy(io.Discard, r); n > 0 || err != nil {
		return 0, 0, errors.Join(fmt.Errorf("the checkpoint is garbled: %d bytes after its end", n), err)
	}
	return t.match(h)
}

func checkVersion(h *header) error {
	switch version := h.metadata["headroom.version"]; version {
	case checkpointVersion:
		return nil
	case "":
		return errors.New("a safetensors file, but not a headroom checkpoint: its metadata has no headroom.version")
	default:
		return fmt.Errorf("the checkpoint has version %s, but this program reads %s: use the version of headroom that wrote it", version, checkpointVersion)
	}
}

// match returns the step and the position in header h, or an error if this run
// cannot continue from a checkpoint with that header.
func (t *Trainer) match(h *header) (step int, position int64, err error) {
	for _, p := range t.identity() {
		if saved := h.metadata[p.key]; saved != p.value {
			return 0, 0, &harness.MismatchError{Key: p.key, Have: p.value, Want: saved}
		}
	}
	due := t.header().entries
	if len(h.entries) != len(due) {
		return 0, 0, fmt.Errorf("the checkpoint is garbled: %d tensors, where %d were expected", len(h.entries), len(due))
	}
	for i, want := range due {
		e := h.entries[i]
		if e.name != want.name || e.DType != want.DType || e.Offsets != want.Offsets || !slices.Equal(e.Shape, want.Shape) {
			return 0, 0, fmt.Errorf("the checkpoint is garbled: tensor %s of %s %v, where %s of %s %v was expected",
				e.name, e.DType, e.Shape, want.name, want.DType, want.Shape)
		}
	}
	step, err1 := strconv.Atoi(h.metadata["step"])
	position, err2 := strconv.ParseInt(h.metadata["position"], 10, 64)
	if err1 != nil || err2 != nil || step < 0 || position < 0 {
		return 0, 0, fmt.Errorf("the checkpoint is garbled: step %q at position %q", h.metadata["step"], h.metadata["position"])
	}
	return step, position, nil
}

// take loads a verified checkpoint onto the device.
func (t *Trainer) take(r io.Reader) error {
	if _, err := readHeader(r); err != nil {
		return err
	}
	values, raw := make([]float32, chunk), make([]byte, 4*chunk)
	for _, x := range t.stored() {
		for part := range parts(x.on) {
			if _, err := io.ReadFull(r, raw[:4*part.Len]); err != nil {
				return fmt.Errorf("%s: %w", x.name, err)
			}
			for i := range part.Len {
				values[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
			}
			t.dev.Upload(part, values[:part.Len])
		}
	}
	return t.dev.Sync()
}
