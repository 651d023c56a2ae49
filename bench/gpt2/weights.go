package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"slices"
	"strings"

	"headroom/model"
)

// tensor is the entry of one tensor in the header of a safetensors file.
type tensor struct {
	DType   string `json:"dtype"`
	Shape   []int  `json:"shape"`
	Offsets [2]int `json:"data_offsets"` // begin and end, counted from the end of the header
}

// contents is a safetensors file in memory. values holds the bytes of all
// tensors.
type contents struct {
	tensors map[string]tensor
	values  []byte
}

func parse(file []byte) (*contents, error) {
	if len(file) < 8 || binary.LittleEndian.Uint64(file) > uint64(len(file)-8) {
		return nil, errors.New("not a safetensors file, or cut short")
	}
	end := 8 + int(binary.LittleEndian.Uint64(file))
	var header map[string]json.RawMessage
	if err := json.Unmarshal(file[8:end], &header); err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	delete(header, "__metadata__")
	c := &contents{tensors: map[string]tensor{}, values: file[end:]}
	for name, text := range header {
		var t tensor
		if err := json.Unmarshal(text, &t); err != nil {
			return nil, fmt.Errorf("header: %s: %w", name, err)
		}
		if t.Offsets[0] < 0 || t.Offsets[0] > t.Offsets[1] || t.Offsets[1] > len(c.values) {
			return nil, fmt.Errorf("%s lies at %v of %d bytes", name, t.Offsets, len(c.values))
		}
		c.tensors[strings.TrimPrefix(name, "transformer.")] = t
	}
	return c, nil
}

// of returns the bytes of the tensor with the given name.
func (c *contents) of(name string) []byte {
	t := c.tensors[name]
	return c.values[t.Offsets[0]:t.Offsets[1]]
}

// loadWeights replaces the weights of t with those in a safetensors file. t must not
// have run a step yet. The file must use GPT-2's names, with or without the prefix
// "transformer.". Other tensors in the file are ignored.
//
// A trainer loads only its own checkpoints, so loadWeights creates one: it lets t save
// a checkpoint, replaces the weights in it and computes the checksum again.
func loadWeights(t *model.Trainer, path string) error {
	input, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	from, err := parse(input)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	var checkpoint bytes.Buffer
	checkpoint.Grow(int(t.Spec().Requirements().Total()))
	if err := t.Save(&checkpoint); err != nil {
		return err
	}
	to, err := parse(checkpoint.Bytes())
	if err != nil {
		return err
	}
	for name, want := range to.tensors {
		if strings.HasPrefix(name, "adamw.") || strings.HasPrefix(name, "headroom.") {
			continue
		}
		got, ok := from.tensors[name]
		if !ok {
			return fmt.Errorf("%s: no tensor %s", path, name)
		}
		if got.DType != want.DType || !slices.Equal(got.Shape, want.Shape) {
			return fmt.Errorf("%s: %s is %s %v, must be %s %v", path, name, got.DType, got.Shape, want.DType, want.Shape)
		}
		copy(to.of(name), from.of(name))
	}
	all := checkpoint.Bytes()
	sum := crc32.Checksum(all[:len(all)-4], crc32.MakeTable(crc32.Castagnoli))
	binary.LittleEndian.PutUint32(all[len(all)-4:], sum)
	return t.Load(bytes.NewReader(all))
}

// save writes the present state of t to path.
func save(t *model.Trainer, path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(t.Save(f), f.Close())
}
