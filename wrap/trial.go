package wrap

import (
	"slices"

	"headroom/recovery"
)

// UntriableError says why any trial of a command would do harm, or never end.
type UntriableError struct {
	Reason string
	Hint   string // what to do
}

func (e *UntriableError) Error() string { return e.Reason }

// Triable reports whether trials of m end by themselves or are ended by watching a
// GPU, and leave alone what the training has written. The user may vouch that the
// command writes nothing. The error is an [*UntriableError] that says what stands in the way.
func (m *Match) Triable(hasGPU, writesNothing bool) error {
	t := m.Profile.Trial
	switch {
	case !t.redirects() && !writesNothing:
		return &UntriableError{"a trial would write where the training does, and " + m.Profile.Name + " does not say how to redirect the trial's output",
			"say where the command writes, with --knob output=FLAG or under trial.set in a profile; pass --writes-nothing if it writes nothing"}
	case t.Steps == 0 && !hasGPU:
		return &UntriableError{m.Profile.Name + " does not say how to end a trial after a few steps, and there is no GPU whose memory could show when the trial has run long enough",
			"name the flag for the training's length in optimizer steps, with --knob steps=FLAG or under trial.set in a profile"}
	}
	return nil
}

// Rehearse returns m's command for a trial of p: a few steps if its profile knows how to
// limit them, from the beginning, with its output in folder, and without its own retries,
// which would hide that something does not fit. The trial's copies of configurations have
// names of their own, so that a training run in progress keeps its copies; the errors are
// those of [Match.Rewrite].
func (m *Match) Rehearse(p recovery.Plan, folder string) (Rewritten, error) {
	return m.rewrite(p, nil, ".headroom-trial-", func(w *rewriter, _, _ step) error { return w.rehearse(p, folder) })
}

// Sizes are the micro-batches that m can be rewritten to without changing the effective
// batch, smallest first; asked is what its command asks for. The error says why there is
// nothing to choose from, where one might expect a choice.
func (m *Match) Sizes(asked recovery.Plan) (sizes []int, err error) {
	for n := asked.Below(asked.Share(0) + 1); n > 0; n = asked.Below(n) {
		if _, refused := m.Rewrite(asked.WithMicro(n), Resume{}); refused != nil {
			err = refused
			continue
		}
		sizes = append(sizes, n)
	}
	slices.Reverse(sizes)
	if len(sizes) > 1 {
		err = nil
	}
	return sizes, err
}

func (w *rewriter) rehearse(p recovery.Plan, folder string) error {
	if len(w.out.Changes) == 0 { // otherwise the method settings has done so
		if err := w.competing(); err != nil {
			return err
		}
	}
	t := w.m.Profile.Trial
	of := amounts{"steps": t.Steps, micro: p.Largest(), accumulation: p.Accumulation(), global: p.Effective, "world": p.World}
	for _, knob := range sortedKeys(t.Set) {
		if err := w.fill(knob, t.Set[knob], folder, of); err != nil {
			return err
		}
	}
	for _, knob := range sortedKeys(t.IfGiven) {
		given, err := w.m.givenOwn(knob)
		if err == nil && given {
			err = w.fill(knob, t.IfGiven[knob], folder, of)
		}
		if err != nil {
			return err
		}
	}
	for _, knob := range t.Drop {
		at, err := w.m.find(w.m.Profile, w.m.files, knob)
		if err == nil && at.kind != inArgument && at.kind > byDefault && !at.unset {
			err = &KnobError{knob, at.where, at.text, "a trial starts from the beginning; take this setting out to search for the micro-batch"}
		}
		if err == nil {
			err = w.drop(knob)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// fill gives a knob a value of a [Rehearsal].
func (w *rewriter) fill(knob, value, folder string, of amounts) error {
	text, err := filled(value, folder, of)
	if err != nil {
		return &KnobError{knob, "trial", value, err.Error()}
	}
	return w.text(knob, text)
}
