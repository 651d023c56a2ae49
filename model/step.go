package model

import (
	"context"
	"errors"
	"fmt"
	"math"

	"headroom/device"
	"headroom/harness"
	"headroom/memory"
	"headroom/recovery"
	"headroom/runs"
)

// Step implements [harness.Trainer]. It works in two parts. The first contains
// everything that can fail and writes only gradients. The second is the update,
// which allocates nothing. If the device fails during the update, the step
// cannot be undone; the trainer then refuses every step and every Save until a
// Load succeeds.
func (t *Trainer) Step(ctx context.Context, p recovery.Plan) (runs.StepReport, error) {
	if err := t.ready(p); err != nil {
		return runs.StepReport{}, err
	}
	t.dev.ResetPeak()
	b, err := t.fetch(t.position, p.Effective)
	if err != nil {
		return runs.StepReport{}, fmt.Errorf("step %d: %w", t.step+1, err)
	}
	splits := p.Splits(0)
	if err := t.gradients(ctx, b, splits); err != nil {
		return runs.StepReport{}, err
	}
	loss, norm, err := t.measure(b.counted)
	if err != nil {
		return runs.StepReport{}, err
	}
	lr := t.spec.Schedule.at(t.step+1, t.spec.Optimizer.LR)
	if err := t.update(lr, norm); err != nil {
		return runs.StepReport{}, err
	}
	r := runs.StepReport{
		Step: t.step + 1, First: t.position, Samples: p.Effective, Tokens: b.counted,
		Loss: loss, GradNorm: norm, LR: lr, Splits: splits, Memory: t.dev.Stats(),
	}
	t.step, t.position = t.step+1, t.position+int64(p.Effective)
	return r, nil
}

func (t *Trainer) ready(p recovery.Plan) error {
	if t.broken != nil {
		return fmt.Errorf("the weights are damaged; load a checkpoint: %w", t.broken)
	}
	if err := p.Validate(); err != nil {
		return err
	}
	if p.World != 1 {
		return fmt.Errorf("world size %d: must be 1, because a native trainer is a single rank", p.World)
	}
	return nil
}

// gradients computes the gradients and the summed loss of b, cut into splits,
// and leaves both in the state. Every target's loss has the same weight, however
// b is cut.
func (t *Trainer) gradients(ctx context.Context, b *batch, splits []int) error {
	s := t.scope()
	return t.settle(s.within(func() error {
		t.dev.Fill(t.st.grads, 0)
		t.dev.Fill(t.st.numbers, 0)
		s.takeFactors()
		from := 0
		for _, n := range splits {
			if ctx.Err() != nil {
				break
			}
			t.microBatch(s, b, from, n)
			from += n
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("step %d: %w", t.step+1, err)
		}
		return nil
	}))
}

func (t *Trainer) scope() *scope {
	kind := device.F32
	if t.spec.Mixed {
		kind = device.BF16
	}
	return &scope{
		dev: t.dev, st: t.st, recompute: t.recompute, kind: kind,
		dropout: device.Dropout{P: float32(t.spec.Dropout), Seed: t.spec.Seed, Step: uint32(t.step)},
	}
}

// microBatch adds the gradients and the loss of samples [from, from+n) of b to
// those in the state. It leaves nothing allocated.
func (t *Trainer) microBatch(s *scope, b *batch, from, n int) {
	s.phase, s.micro = memory.PhaseForward, n
	in := b.upload(s, from, n, t.classes)
	logits, backward := t.net.forward(s, in)
	loss := s.floats(in.rows)
	t.dev.CrossEntropy(loss, logits, in.targets, in.rows, in.classes, float32(1/float64(b.counted)))
	t.dev.Sum(t.st.number(lossMicro), loss)
	t.dev.Add(t.st.number(lossSum), t.st.number(lossMicro))
	s.free(loss)

	s.phase = memory.PhaseBackward
	backward(logits)
	in.free(s)
}

// settle waits until the device has finished all work queued so far, so that the
// next step starts clean. If the device reports an error, settle returns that
// error, because it occurred before err; otherwise it returns err.
func (t *Trainer) settle(err error) error {
	if failed := t.dev.Sync(); failed != nil {
		return fmt.Errorf("step %d: %w", t.step+1, failed)
	}
	return err
}

// measure returns the mean loss over the counted targets and the norm of the
// gradients. If one of them is NaN or infinite, the error is a
// *[harness.NotFiniteError].
func (t *Trainer) measure(counted int) (loss, norm float64, err error) {
	t.dev.SumSquares(t.st.number(squares), t.st.grads)
	var numbers [numbersLen]float32
	if err := errors.Join(t.dev.Download(numbers[:], t.st.numbers), t.dev.Sync()); err != nil {
		return 0, 0, fmt.Errorf("step %d: %w", t.step+1, err)
	}
	loss = float64(numbers[lossSum]) / float64(counted)
	norm = math.Sqrt(float64(numbers[squares]))
	if math.IsNaN(loss) || math.IsInf(loss, 0) {
		return loss, norm, &harness.NotFiniteError{Step: t.step + 1, What: "loss", Value: loss}
	}
	if math.IsNaN(norm) || math.IsInf(norm, 0) {
		return loss, norm, &harness.NotFiniteError{Step: t.step + 1, What: "gradient norm", Value: norm}
	}
	return loss, norm, nil
}

func (t *Trainer) update(lr, norm float64) error {
	o := t.spec.Optimizer
	o.update(t.dev, t.st, t.step+1, lr, o.clipScale(norm))
	if err := t.dev.Sync(); err != nil {
		t.broken = fmt.Errorf("step %d: the update of the weights failed halfway: %w", t.step+1, err)
		return t.broken
	}
	return nil
}

// Probe implements [harness.Trainer]. It overwrites gradients, loss sums and
// factors, whose values are not needed between steps, and changes nothing else.
func (t *Trainer) Probe(ctx context.Context, micro int) (memory.Stats, error) {
	if micro < 1 {
		return memory.Stats{}, fmt.Errorf("probe micro-batch %d: must be at least 1", micro)
	}
	if err := ctx.Err(); err != nil {
		return memory.Stats{}, err
	}
	// Memory that earlier probes left in the cache would count against this one.
	if _, err := t.dev.EmptyCache(); err != nil {
		return memory.Stats{}, fmt.Errorf("probe micro-batch %d: %w", micro, err)
	}
	t.dev.ResetPeak()
	b := newBatch(t.set.Shape(), micro) // all tokens, features and targets are 0, so every target counts
	b.counted = len(b.targets)
	s := t.scope()
	err := s.within(func() error {
		s.takeFactors()
		t.microBatch(s, b, 0, micro)
		return nil
	})
	if failed := t.dev.Sync(); failed != nil {
		return memory.Stats{}, fmt.Errorf("probe micro-batch %d: %w", micro, failed)
	}
	return t.dev.Stats(), err
}
