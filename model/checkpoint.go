package model

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"math"
	"strconv"

	"headroom/device"
)

// checkpointVersion is the version of the checkpoint format. It changes when
// older programs can no longer read new checkpoints.
const checkpointVersion = "1"

// checksumName names the last tensor of a checkpoint, which holds the CRC-32C of
// everything before it. Because the checksum is a tensor, the file is still a
// plain safetensors file.
const checksumName = "headroom.crc32c"

func newChecksum() hash.Hash32 { return crc32.New(crc32.MakeTable(crc32.Castagnoli)) }

// chunk is the number of elements that are copied through host memory at a time.
// They take 256 KiB.
const chunk = 1 << 16

// stored is one array of a checkpoint, with the device tensor that holds its
// contents.
type stored struct {
	name  string
	shape []int
	on    device.Tensor
}

// stored returns all arrays of a checkpoint, in the order of the file.
func (t *Trainer) stored() []stored {
	var all []stored
	add := func(prefix string, flat device.Tensor) {
		for _, p := range t.st.layout.list {
			all = append(all, stored{prefix + p.name, p.shape, flat.View(p.at, p.n)})
		}
	}
	add("", t.st.weights)
	for i, prefix := range t.spec.Optimizer.moments() {
		add(prefix, t.st.moments[i])
	}
	return all
}

// pair is a key of the run configuration and its value.
type pair struct{ key, value string }

// identity returns the settings in which a run and a checkpoint must agree for
// the run to continue from the checkpoint. Learning rate, schedule and similar
// settings may change between attempts.
func (t *Trainer) identity() []pair {
	s := t.spec
	number := func(key string, v int) pair { return pair{key, strconv.Itoa(v)} }
	all := []pair{{"model.kind", string(s.Kind)}, number("model.width", s.Width), number("model.layers", s.Layers)}
	if s.Kind == GPT {
		all = append(all, number("model.heads", s.Heads), number("model.context", s.Context), number("model.vocab", s.Vocab))
	} else {
		all = append(all, number("model.features", s.Features), number("model.classes", s.Classes))
	}
	return append(all, pair{"optimizer.kind", string(s.Optimizer.Kind)},
		pair{"seed", strconv.FormatUint(s.Seed, 10)}, pair{"data", t.set.Fingerprint()})
}

func (t *Trainer) header() *header {
	h := &header{metadata: map[string]string{
		"format":           "pt", // Transformers requires "pt", which means that names and shapes are PyTorch's
		"headroom.version": checkpointVersion,
		"step":             strconv.Itoa(t.step),
		"position":         strconv.FormatInt(t.position, 10),
	}}
	for _, p := range t.identity() {
		h.metadata[p.key] = p.value
	}
	for _, x := range t.stored() {
		h.add(x.name, "F32", x.shape...)
	}
	h.add(checksumName, "U32", 1)
	return h
}

// Save implements [harness.Trainer]. It writes a safetensors file. The weights
// are stored under their names, and the optimizer's moments under the same names
// with a prefix. The metadata holds the step, the position and the settings that
// identify the model. Save allocates nothing on the device, and under 1 MiB of
// host memory, however large the model is.
func (t *Trainer) Save(w io.Writer) error {
	if t.broken != nil {
		return fmt.Errorf("save: %w", t.broken)
	}
	file := bufio.NewWriterSize(w, 4*chunk)
	sum := newChecksum()
	out := io.MultiWriter(file, sum)
	if err := t.header().write(out); err != nil {
		return fmt.Errorf("save: header: %w", err)
	}
	values, raw := make([]float32, chunk), make([]byte, 4*chunk)
	for _, x := range t.stored() {
		for part := range parts(x.on) {
			if err := t.dev.Download(values[:part.Len], part); err != nil {
				return fmt.Errorf("save: %s: %w", x.name, err)
			}
			for i, v := range values[:part.Len] {
				binary.LittleEndian.PutUint32(raw[4*i:], math.Float32bits(v))
			}
			if _, err := out.Write(raw[:4*part.Len]); err != nil {
				return fmt.Errorf("save: %s: %w", x.name, err)
			}
		}
	}
	_, err := file.Write(binary.LittleEndian.AppendUint32(nil, sum.Sum32()))
	if err := errors.Join(err, file.Flush(), t.dev.Sync()); err != nil {
		return fmt.Errorf("save: %w", err)
	}
	return nil
}

// parts yields consecutive pieces of x, each small enough for the host buffer.
func parts(x device.Tensor) func(yield func(device.Tensor) bool) {
	return func(yield func(device.Tensor) bool) {
		for from := 0; from < x.Len; from += chunk {
			if !yield(x.View(from, min(chunk, x.Len-from))) {
				return
			}
		}
	}
}
