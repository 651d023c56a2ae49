package rewrite

import (
	"fmt"
	"slices"

	"headroom/recovery"
	"headroom/wrap/command"
	"headroom/wrap/profile"
)

// Result is the command to start next. Its files are not on disk yet:
// [Result.Write] writes them.
type Result struct {
	Command command.Line
	Plan    recovery.Plan
	Copies  []Copy   // changed copies of configurations, beside the originals
	Clone   *Clone   // of a checkpoint, if one of its files has to be different; may be nil
	Changes []Change // in the order in which they were made; empty if the command stays unchanged
	Prove   []string // conditions under which the training stays the same, and which headroom cannot verify
}

// Copy is a file that headroom writes beside the user's own.
type Copy struct {
	Path, From string // as the command names them
	Content    []byte
	original   []byte
}

// Clone is a folder that stands in for a checkpoint: it has links to the checkpoint's
// files, except for the files whose contents have to differ.
type Clone struct {
	Path, From string            // as the command names them
	Files      map[string][]byte // contents of the files that differ, by path in the folder
	original   map[string][]byte
}

// Change is one knob that was given a different value.
type Change struct {
	Knob  string `json:"knob"`
	Where string `json:"where"`         // "--batch-size", ".headroom-train.yaml"
	Old   string `json:"old,omitempty"` // "" if it was not given
	New   string `json:"new,omitempty"` // "" if it was taken out
}

// To returns m's command with the micro-batch of p, the accumulation that keeps the
// effective batch exactly the same, and the arguments that make it resume from r. If
// nothing has to change, it is the same command. fallbacks are the names of the profile's
// fallbacks to use.
//
// If the rewritten command would train something else, To returns an error instead.
// An [*InexactError] names micro-batches that would work. A [*KnobError] says which knob
// cannot be read or set, and an [*edit.Error] what cannot be edited without changing
// something else. A [*ResumeError] says why the command cannot resume.
func To(m *Match, p recovery.Plan, r Resume, fallbacks ...string) (Result, error) {
	return changed(m, p, fallbacks, ".headroom-", func(w *rewriter, s, next step) error { return w.resume(r, s, next) })
}

// changed makes the changes that the plan p needs, and then calls the function more,
// which makes further changes. more gets the current step and the next one. The names of
// copied configurations begin with prefix.
func changed(m *Match, p recovery.Plan, fallbacks []string, prefix string, more func(w *rewriter, s, next step) error) (Result, error) {
	s, err := stepOf(m)
	if err != nil {
		return Result{}, err
	}
	asked, err := Asks(m)
	if err != nil {
		return Result{}, err
	}
	if err := keeps(m, asked.Plan, p, s); err != nil {
		return Result{}, err
	}
	w := &rewriter{m: m, prefix: prefix, args: slices.Clone(m.Command.Args), env: slices.Clone(m.Command.Env), texts: map[*document][]byte{}}
	next := s
	next.perMicro, next.perRank = p.Largest(), p.Accumulation()
	if next.perMicro != s.perMicro {
		err = w.cut(s, next)
	}
	if err == nil {
		err = w.settings(asked.Plan, p, fallbacks)
	}
	if err == nil {
		err = more(w, s, next)
	}
	if err != nil {
		return Result{}, err
	}
	out := w.rewritten(p)
	return out, proves(m, out, p)
}

// keeps returns an error unless p has the same effective batch and number of ranks as the
// command, and the framework can run p's micro-batch.
func keeps(m *Match, asked, p recovery.Plan, s step) error {
	inexact := func(format string, args ...any) error {
		return &InexactError{Asked: p, Reason: fmt.Sprintf(format, args...)}
	}
	if err := p.Validate(); err != nil {
		return inexact("%v", err)
	}
	if p.Effective != asked.Effective || p.World != asked.World {
		return inexact("the command trains on %d samples per step with %d ranks, but the plan has %d on %d", asked.Effective, asked.World, p.Effective, p.World)
	}
	uniform, size := p, p.Largest()
	uniform.Uniform, uniform.Common = true, asked.Common
	if !p.Uniform {
		size = p.Micro
	}
	if !uniform.Runs(size) {
		refused := &InexactError{Asked: p, Reason: fmt.Sprintf("each rank has %d samples per step, and that is not a multiple of the micro-batch", p.Share(0))}
		if asked.Common > 0 {
			refused.Reason = fmt.Sprintf("the effective batch grows, so each rank has some multiple of %d samples per step, which is not always a multiple of the micro-batch", asked.Common/asked.World)
		}
		for _, n := range []int{uniform.Below(p.Micro), uniform.Above(p.Micro)} {
			if n > 0 {
				refused.Nearest = append(refused.Nearest, n)
			}
		}
		return refused
	}
	micros := p.Largest()
	if least := m.Profile.Knobs[profile.Micro].Least(); micros < least && micros != s.perMicro {
		return inexact("%s needs a micro-batch of at least %d", m.Profile.Name, least)
	}
	return lawful(m, p, s)
}

// lawful returns an error if switching to p's micro-batch would make the framework use a
// different effective batch, gradient or learning rate.
func lawful(m *Match, p recovery.Plan, s step) error {
	if p.Largest() == s.perMicro {
		return nil
	}
	inexact := func(format string, args ...any) error {
		return &InexactError{Asked: p, Reason: fmt.Sprintf(format, args...)}
	}
	law := m.Profile.Law
	switch {
	case m.Profile.Coupling == profile.ByMicro:
		return inexact("%s scales the learning rate by the micro-batch alone, so the learning rate would change", m.Profile.Name)
	case !m.Profile.Writes(profile.Accumulation) && law.Derive == "":
		return inexact("no knob sets the accumulation, so a smaller micro-batch would change the effective batch; name one with --knob accumulation=FLAG")
	case m.Profile.Writes(profile.Accumulation) && m.Profile.Normalised == profile.NotNormalised:
		return inexact("%s does not divide the loss by the number of accumulation steps, so the gradients would grow with that number", m.Profile.Name)
	}
	of := profile.Amounts{profile.Micro: p.Largest(), profile.Accumulation: p.Accumulation(), profile.Global: p.Effective, "world": p.World}
	for _, text := range law.Require {
		if ok, err := profile.Condition(text, of); err != nil || !ok {
			return inexact("%s needs %s", m.Profile.Name, text)
		}
	}
	return nil
}

// proves reads the rewritten command as its framework would, and returns an error unless
// that command asks for p.
func proves(m *Match, out Result, p recovery.Plan) error {
	after := after(m, out)
	launch, err := command.Peel(after.Command)
	if err != nil {
		return err
	}
	after.Launch = launch
	got, err := Asks(after)
	if err != nil {
		return err
	}
	if got.Plan.Effective != p.Effective || got.Plan.World != p.World || got.Plan.Micro != p.Largest() || got.Accumulation != p.Accumulation() {
		return &InexactError{Asked: p, Reason: fmt.Sprintf("the rewritten command would instead train with %v", got.Plan)}
	}
	return nil
}

// after returns m with the command and the configurations as rewritten.
func after(m *Match, out Result) *Match {
	after := *m
	after.Command = out.Command
	renew := func(docs []document) []document {
		docs = slices.Clone(docs)
		for i, d := range docs {
			for _, c := range out.Copies {
				if c.From == d.name {
					docs[i].content = c.Content
				}
			}
		}
		return docs
	}
	after.files, after.under = renew(m.files), nil
	for _, docs := range m.under {
		after.under = append(after.under, renew(docs))
	}
	return &after
}
