package ui

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"headroom/device"
	"headroom/harness"
	"headroom/job"
	"headroom/memory"
	"headroom/recovery"
	"headroom/runs"
)

func TestExitStatus(t *testing.T) {
	gaveUp := func(c memory.Cause) error {
		return &harness.GaveUpError{Decision: recovery.Decision{Verdict: &memory.Verdict{Cause: c}}}
	}
	for _, c := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{errors.New("anything"), 1},
		{&harness.NotFiniteError{}, 1},
		{&harness.PanicError{Step: 3, Value: "a shape is wrong"}, 1},
		{&harness.BrokenPromiseError{}, 1},
		{&harness.CheckpointError{Err: errors.New("no space left")}, 1},
		{Usagef("", "x"), 2},
		{&harness.MismatchError{}, 2},
		{&runs.LockedError{}, 2},
		{harness.ErrInterrupted, 75},
		{context.Canceled, 75},
		{gaveUp(memory.Model), 120},
		{gaveUp(memory.Host), 120},
		{&memory.OutOfMemoryError{}, 120},
		{gaveUp(memory.Unknown), 121},
		{&harness.GaveUpError{}, 121},
		{job.ErrNoDevice, 122},
		{&harness.DeviceGoneError{Err: &device.GoneError{Device: "GPU 0", Err: errors.New("fell off the bus")}}, 122},
		{fmt.Errorf("step 3: %w", &device.GoneError{Device: "GPU 0", Err: errors.New("fell off the bus")}), 122},
	} {
		for _, err := range []error{c.err, inARun(c.err)} {
			if got := ExitStatus(err); got != c.want {
				t.Errorf("exitStatus(%T %v) = %d, want %d", err, err, got, c.want)
			}
		}
	}
}

func inARun(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("run: %w", err)
}

func TestOneRowMatches(t *testing.T) {
	for _, err := range []error{Usagef("", "x"), harness.ErrInterrupted, &harness.GaveUpError{}, &memory.OutOfMemoryError{}, job.ErrNoDevice} {
		n := 0
		for _, e := range Exits {
			if e.is != nil && e.is(err) {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%v: %d rows match, want 1", err, n)
		}
	}
}
