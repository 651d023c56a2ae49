package harness

import (
	"errors"
	"fmt"

	"go.uber.org/zap"

	"headroom/memory"
)

// settle saves what the attempt has done where that must not be lost.
func (r *runner) settle(err error) error {
	var gaveUp *GaveUp
	switch {
	case err == nil, errors.Is(err, ErrInterrupted), errors.Is(err, errRelaunch):
		if failed := r.save(true); failed != nil {
			if !r.isLost(failed) { // a loss is told as such
				r.saveFailed(failed)
			}
			return &CheckpointError{Dir: r.f.Dir(), Step: r.step, Newest: r.saved, Err: failed}
		}
	case errors.As(err, &gaveUp):
		// The step was put back, so the state is good: another device or
		// another configuration can go on from it.
		if failed := r.save(true); failed != nil {
			r.saveFailed(failed)
		}
	}
	return err
}

// save writes a checkpoint of the state as it is, unless there is one. Metrics
// go first, so that a checkpoint vouches for the lines up to it; where the
// state must be saved it goes on without them, for weights are worth more.
func (r *runner) save(must bool) error {
	if r.saved == r.step {
		return nil
	}
	start := r.o.Now()
	if err := r.f.flushMetrics(true); err != nil {
		if !must {
			return fmt.Errorf("write metrics.jsonl: %w", err)
		}
		r.log.Warn("metrics.jsonl cannot be written", zap.Error(err))
	}
	c, err := r.f.saveCheckpoint(Checkpoint{Step: r.step, Samples: r.samples, Attempt: r.number,
		Plan: r.history.Plan, Learned: r.history.Learned(r.o.Plan, r.o.Precision), Time: start}, r.trainer.Save)
	if err != nil {
		return err
	}
	r.saved = r.step
	seconds := r.o.Now().Sub(start).Seconds()
	r.record(Entry{Kind: KindCheckpoint, Text: fmt.Sprintf("checkpoint of step %d: %v in %s", c.Step, memory.Bytes(c.Size), lasting(seconds)), Seconds: seconds})
	if err := r.f.prune(r.o.Keep); err != nil {
		r.log.Warn("older checkpoints cannot be removed", zap.Error(err))
	}
	return nil
}

func (r *runner) saveFailed(err error) {
	r.record(Entry{Kind: KindCheckpointFailed, Text: fmt.Sprintf("checkpoint of step %d could not be written: %v; older ones are untouched", r.step, err)})
}
