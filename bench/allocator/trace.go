package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"

	"headroom/memory"
)

// trace holds the allocations of a training run that draws a sequence length
// for each step. It is written as JSON, so that replay.py can replay it too.
type trace struct {
	Model   string         `json:"model"`
	State   []memory.Bytes `json:"state"`   // tensors that live from before the first step to the end
	Slots   int            `json:"slots"`   // number of tensors in a step
	Ops     []op           `json:"ops"`     // of every step, in order
	Lengths []int          `json:"lengths"` // tokens per sample, for each step
	Peak    memory.Bytes   `json:"peak"`    // most bytes allocated at once, with each tensor rounded up to 512
}

// op allocates Fixed + Each·length bytes for the tensor Slot of a step, or frees that
// tensor if Fixed and Each are both 0.
type op struct {
	Slot  int   `json:"slot"`
	Fixed int64 `json:"fixed,omitempty"`
	Each  int64 `json:"each,omitempty"`
}

func (o op) frees() bool { return o.Fixed == 0 && o.Each == 0 }

func (o op) size(length int) memory.Bytes { return memory.Bytes(o.Fixed + o.Each*int64(length)) }

// drawLengths draws n lengths uniformly between least and most.
func drawLengths(seed uint64, n, least, most int) []int {
	r := rand.New(rand.NewPCG(seed, 0))
	lengths := make([]int, n)
	for i := range lengths {
		lengths[i] = least + r.IntN(most-least+1)
	}
	return lengths
}

// pairs returns how many tensors a step allocates and frees.
func (t *trace) pairs() int { return len(t.Ops) / 2 }

// peak computes the value of the field Peak.
func (t *trace) peak() memory.Bytes {
	var state, highest memory.Bytes
	for _, n := range t.State {
		state += rounded(n)
	}
	sizes := make([]memory.Bytes, t.Slots)
	for _, length := range t.Lengths {
		live := state
		for _, o := range t.Ops {
			if o.frees() {
				live -= sizes[o.Slot]
				continue
			}
			sizes[o.Slot] = rounded(o.size(length))
			live += sizes[o.Slot]
			highest = max(highest, live)
		}
	}
	return highest
}

// rounded returns how many bytes the allocators of headroom and of PyTorch both count for
// a tensor of n bytes.
func rounded(n memory.Bytes) memory.Bytes { return (n + 511) / 512 * 512 }

func (t *trace) write(path string) error {
	text, err := json.Marshal(t)
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}

func readTrace(path string) (*trace, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	t := new(trace)
	if err := json.Unmarshal(text, t); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if err := t.validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

// validate returns an error if a replay of t would be meaningless. Every tensor
// of a step must be allocated once, with at least one byte, and freed once after
// that.
func (t *trace) validate() error {
	for i, n := range t.State {
		if n < 1 {
			return fmt.Errorf("state %d holds %d bytes: must be at least 1", i, n)
		}
	}
	if len(t.Lengths) == 0 {
		return errors.New("no lengths: must be at least 1")
	}
	if t.Slots < 0 || t.Slots > len(t.Ops) {
		return fmt.Errorf("%d tensors with %d operations: two for each", t.Slots, len(t.Ops))
	}
	return t.validateOps()
}

// validateOps is the part of validate that is about the operations of a step.
func (t *trace) validateOps() error {
	const fresh, live, freed = 0, 1, 2
	slots := make([]int, t.Slots)
	for i, o := range t.Ops {
		if o.Slot < 0 || o.Slot >= t.Slots {
			return fmt.Errorf("op %d is on tensor %d: must be 0 to %d", i, o.Slot, t.Slots-1)
		}
		want := fresh
		if o.frees() {
			want = live
		}
		if slots[o.Slot] != want {
			return fmt.Errorf("op %d: tensor %d is allocated twice, or freed while it is not allocated", i, o.Slot)
		}
		slots[o.Slot]++
		for _, length := range t.Lengths {
			if !o.frees() && o.size(length) < 1 {
				return fmt.Errorf("op %d allocates %d bytes at length %d: must be at least 1", i, o.size(length), length)
			}
		}
	}
	for i, s := range slots {
		if s != freed {
			return fmt.Errorf("tensor %d is not freed in its step", i)
		}
	}
	return nil
}
