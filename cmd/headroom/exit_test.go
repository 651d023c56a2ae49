package main

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"headroom/configs"
	"headroom/device"
	"headroom/harness"
	"headroom/memory"
)

func TestExitStatus(t *testing.T) {
	gaveUp := func(c memory.Cause) error {
		return &harness.GaveUp{Decision: harness.Decision{Verdict: &memory.Verdict{Cause: c}}}
	}
	for _, c := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{errors.New("anything"), 1},
		{&harness.NotFinite{}, 1},
		{&harness.Panicked{Step: 3, Value: "a shape is wrong"}, 1},
		{&harness.BrokenPromise{}, 1},
		{&harness.CheckpointError{Err: errors.New("no space left")}, 1},
		{usagef("", "x"), 2},
		{&harness.Mismatch{}, 2},
		{&harness.Locked{}, 2},
		{harness.ErrInterrupted, 75},
		{context.Canceled, 75},
		{gaveUp(memory.Model), 120},
		{gaveUp(memory.Host), 120},
		{&memory.OutOfMemory{}, 120},
		{gaveUp(memory.Unknown), 121},
		{&harness.GaveUp{}, 121},
		{configs.ErrNoDevice, 122},
		{&harness.DeviceLost{Err: &device.Lost{Device: "GPU 0", Err: errors.New("fell off the bus")}}, 122},
		{fmt.Errorf("step 3: %w", &device.Lost{Device: "GPU 0", Err: errors.New("fell off the bus")}), 122},
	} {
		for _, err := range []error{c.err, wrapped(c.err)} {
			if got := exitStatus(err); got != c.want {
				t.Errorf("exitStatus(%T %v) = %d, want %d", err, err, got, c.want)
			}
		}
	}
}

func wrapped(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("run: %w", err)
}

func TestOneRowMatches(t *testing.T) {
	for _, err := range []error{usagef("", "x"), harness.ErrInterrupted, &harness.GaveUp{}, &memory.OutOfMemory{}, configs.ErrNoDevice} {
		n := 0
		for _, e := range exits {
			if e.is != nil && e.is(err) {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%v: %d rows match, want 1", err, n)
		}
	}
}
