package rewrite

import (
	"maps"
	"slices"
	"strings"

	"headroom/recovery"
	"headroom/wrap/profile"
)

// UntriableError says why trials of a command are not possible: a trial might do harm,
// might never end, or cannot simulate the memory that was asked for.
type UntriableError struct {
	Reason string
	Hint   string // what to do
}

func (e *UntriableError) Error() string { return e.Reason }

// Triable returns nil if trials of m can be ended and do not overwrite the training's
// files. A trial can be ended if it ends by itself after a few steps, or if there is a GPU
// to watch (hasGPU). writesNothing means that, according to the user, the command writes no
// files. The error is an [*UntriableError].
func Triable(m *Match, hasGPU, writesNothing bool) error {
	var reasons, hints []string
	t := m.Profile.Trial
	if !t.Redirects() && !writesNothing {
		reasons = append(reasons, "headroom does not know where the command writes, and a trial would write to the same place as the training")
		hints = append(hints, "say where the command writes, with --knob output=FLAG or under trial.set in a profile; pass --writes-nothing if it writes nothing")
	}
	if t.Steps == 0 && !hasGPU {
		reasons = append(reasons, "headroom does not know how to end a trial after a few steps, and there is no GPU whose memory could show when the trial has run long enough")
		hints = append(hints, "name the flag that sets the training's length in optimizer steps, with --knob steps=FLAG or under trial.set in a profile")
	}
	if reasons == nil {
		return nil
	}
	return &UntriableError{strings.Join(reasons, "; "), strings.Join(hints, "; ")}
}

// TrialKnobs returns the names of the knobs without which no profile fits a trial of a command
// that headroom does not recognise, and that are not among knobs. The other parameters are those
// of [Triable].
func TrialKnobs(knobs []string, hasGPU, writesNothing bool) (missing []string) {
	named := func(name string) bool {
		return slices.ContainsFunc(knobs, func(k string) bool { return strings.HasPrefix(k, name+"=") })
	}
	for _, need := range []struct {
		name string
		met  bool
	}{{profile.Micro, false}, {profile.Accumulation, named(profile.Global)}, {"output", writesNothing}, {profile.Length, hasGPU}} {
		if !need.met && !named(need.name) {
			missing = append(missing, need.name)
		}
	}
	return missing
}

// Rehearse returns m's command changed into a trial of p. The trial starts from the
// beginning, and runs only a few steps if the profile can limit them. It writes its
// output to folder. The command's own retries are turned off, since they would hide the
// fact that something does not fit. The trial's copies of configurations have their own
// names, so that they do not replace those of a training run in progress. The errors are
// those of [To].
func Rehearse(m *Match, p recovery.Plan, folder string) (Result, error) {
	return changed(m, p, nil, ".headroom-trial-", func(w *rewriter, _, _ step) error { return w.rehearse(p, folder) })
}

// Sizes returns the micro-batches, smallest first, to which m can be rewritten without
// changing the effective batch. asked is the plan that m's command asks for. If there are
// fewer than two sizes because To refused others, the error says why it did.
func Sizes(m *Match, asked recovery.Plan) (sizes []int, err error) {
	for n := asked.Below(asked.Share(0) + 1); n > 0; n = asked.Below(n) {
		if _, refused := To(m, asked.WithMicro(n), Resume{}); refused != nil {
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
	if len(w.out.Changes) == 0 { // otherwise settings has already called competing
		if err := w.competing(); err != nil {
			return err
		}
	}
	t := w.m.Profile.Trial
	of := profile.Amounts{"steps": t.Steps, profile.Micro: p.Largest(), profile.Accumulation: p.Accumulation(), profile.Global: p.Effective, "world": p.World}
	for _, knob := range slices.Sorted(maps.Keys(t.Set)) {
		if err := w.fill(knob, t.Set[knob], folder, of); err != nil {
			return err
		}
	}
	for _, knob := range slices.Sorted(maps.Keys(t.IfGiven)) {
		given, err := w.m.Sets(knob)
		if err == nil && given {
			err = w.fill(knob, t.IfGiven[knob], folder, of)
		}
		if err != nil {
			return err
		}
	}
	for _, knob := range t.Drop {
		if err := w.afresh(knob); err != nil {
			return err
		}
	}
	return nil
}

// afresh removes a knob that would make a trial go on from something.
func (w *rewriter) afresh(knob string) error {
	at, err := w.m.find(w.m.Profile, w.m.files, knob)
	if err != nil {
		return err
	}
	if at.kind != inArgument && at.kind > byDefault && !at.unset {
		return &KnobError{knob, at.where, at.text, "a trial starts from the beginning; remove this setting to search for the micro-batch"}
	}
	return w.drop(knob)
}

// fill sets a knob to a value from a [profile.Rehearsal], after replacing the placeholders in
// braces.
func (w *rewriter) fill(knob, value, folder string, of profile.Amounts) error {
	text, err := profile.Filled(value, folder, of)
	if err != nil {
		return &KnobError{knob, "trial", value, err.Error()}
	}
	return w.text(knob, text)
}
