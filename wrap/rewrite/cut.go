package rewrite

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"headroom/wrap/profile"
)

// cut writes the knobs that change with the micro-batch, from the step s to the step next.
func (w *rewriter) cut(s, next step) error {
	m := w.m
	law := m.Profile.Law
	derived, err := w.derived(s)
	if err != nil {
		return err
	}
	for _, group := range law.Exclude {
		if err := exclude(m, group); err != nil {
			return err
		}
	}
	if derived && s.global == 0 {
		if err := w.pin(s); err != nil {
			return err
		}
	}
	if err := w.amount(m.Profile, m.files, profile.Micro, written(m.Profile.Knobs[profile.Micro].Scope, next.perMicro, s.ranks)); err != nil {
		return err
	}
	if !derived {
		if err := w.amount(m.Profile, m.files, profile.Accumulation, written(m.Profile.Knobs[profile.Accumulation].Scope, next.perRank, s.ranks)); err != nil {
			return err
		}
		if m.Profile.Normalised == profile.Prove {
			w.prove("the script divides each loss by the accumulation")
		}
	}
	if err := w.conditions(); err != nil {
		return err
	}
	return w.layers(next)
}

// conditions adds those conditions under which the training stays the same that do not depend on
// the accumulation.
func (w *rewriter) conditions() error {
	m := w.m
	if m.Profile.Name == "plain" {
		w.prove("the learning rate does not depend on the micro-batch alone")
	}
	if m.Profile.Name == "plain" && m.Profile.Unit == "" && m.Profile.Resume.Mode != "none" {
		w.prove("a checkpoint counts optimizer steps, samples or epochs, not micro-batches (--knob unit=step says so, --knob unit=micro-batch the opposite)")
	}
	if err := w.length(); err != nil {
		return err
	}
	holds := doubtful(m)
	if m.Profile.Name == "plain" && !slices.ContainsFunc(holds, func(h string) bool { return strings.HasPrefix(h, compared) }) {
		w.prove(compared) // nothing is known about the script's loss
	}
	w.out.Prove = append(w.out.Prove, holds...)
	return nil
}

// pin writes the effective batch, which the framework would otherwise compute from
// the micro-batch that is about to change.
func (w *rewriter) pin(s step) error {
	m, total := w.m, s.total()
	if !slices.Contains(m.Profile.Law.Pin, profile.Global) {
		return &KnobError{profile.Global, m.Where(profile.Global), "", "not given, so it would change with the micro-batch; give it"}
	}
	if m.Profile.Knobs[profile.Global].Scope != profile.Total {
		total /= max(1, s.ranks)
	} else if s.ranks == 0 {
		return &WorldError{profile.Global, s.why}
	}
	return w.amount(m.Profile, m.files, profile.Global, total)
}

// length handles a training length that is given in epochs: it adds a condition that the
// user has to verify. The framework computes the steps in an epoch, with rounding, from
// the number of micro-batches, and the learning-rate schedule depends on that.
func (w *rewriter) length() error {
	if _, has := w.m.Profile.Knobs[profile.Length]; !has {
		return nil
	}
	given, err := w.m.Sets(profile.Length)
	if err == nil && !given {
		what := "an epoch has as many steps as before, which is the case if its number of samples is a multiple of the effective batch"
		if !slices.Contains(w.m.Profile.Checkpoints.Within, profile.Length) {
			what += fmt.Sprintf(", or if %s is given", w.m.Where(profile.Length))
		}
		w.prove(what)
	}
	return err
}

func (w *rewriter) prove(what string) { w.out.Prove = append(w.out.Prove, what) }

// derived reports whether the framework computes the accumulation by itself for s.
func (w *rewriter) derived(s step) (bool, error) {
	given, err := w.m.Sets(profile.Accumulation)
	return w.m.Profile.Law.Derive == profile.Accumulation && !given || s.global > 0 && !given, err
}

// exclude returns an error if the command gives all knobs of group, which must not be
// given together.
func exclude(m *Match, group []string) error {
	var given []string
	for _, name := range group {
		own, err := m.Sets(name)
		if err != nil {
			return err
		}
		if own {
			given = append(given, name)
		}
	}
	if len(given) == len(group) && len(group) == 1 {
		return &KnobError{given[0], m.Where(given[0]), "", "it counts micro-batches, so its meaning would change with the micro-batch size; remove it"}
	}
	if len(given) == len(group) {
		return &KnobError{given[0], m.Where(given[0]), "", fmt.Sprintf("%s does not accept it together with %s", m.Profile.Name, strings.Join(given[1:], ", "))}
	}
	return nil
}

// layers writes the new sizes into layers that set them. A layer that takes a size from
// the framework is left alone.
func (w *rewriter) layers(next step) error {
	for i, layer := range w.m.Layers {
		now := map[string]int{profile.Micro: next.perMicro, profile.Accumulation: next.perRank}
		for _, name := range slices.Sorted(maps.Keys(now)) {
			at, err := w.m.find(layer, w.m.under[i], name)
			if err != nil {
				return err
			}
			if at.text == "" || at.kind == byDefault {
				continue
			}
			if err := w.amount(layer, w.m.under[i], name, now[name]); err != nil {
				return err
			}
		}
	}
	return nil
}
