package rewrite

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"headroom/wrap/command"
	"headroom/wrap/edit"
	"headroom/wrap/profile"
)

// Resume says which checkpoint a command resumes from.
type Resume struct {
	From     string            // path of the checkpoint, spelled as in the command; "" to start from the beginning
	Problem  string            // why the checkpoint cannot be used; "" if it is complete
	Micro    int               // the micro-batch that the checkpoint was written with; 0 means the command's own
	Versions map[string]string // installed versions by Python package, as far as they are known
}

// ResumeError says why a command cannot resume from a checkpoint, or could do so only by
// changing what is trained.
type ResumeError struct{ Reason string }

func (e *ResumeError) Error() string { return "cannot resume: " + e.Reason }

// resume writes the settings that make the command resume from a checkpoint.
func (w *rewriter) resume(r Resume, s, next step) error {
	if r.From == "" {
		return nil // most frameworks fail if they are told to resume and there is no checkpoint
	}
	p := w.m.Profile
	if err := resumable(w.m, r, s, next); err != nil {
		return err
	}
	if p.Resume.Mode == "auto" && len(p.Resume.Set)+len(p.Resume.Drop) == 0 {
		return nil
	}
	before := s
	if r.Micro > 0 {
		before.perMicro, before.perRank = r.Micro, s.perMicro*s.perRank/r.Micro
	}
	from, err := w.patched(r.From, before, next)
	if err != nil {
		return err
	}
	root, err := Root(w.m)
	if err != nil {
		return err
	}
	names := strings.NewReplacer("{checkpoint}", from, "{root}", root)
	for _, name := range slices.Sorted(maps.Keys(p.Resume.Set)) {
		if err := w.text(name, names.Replace(p.Resume.Set[name])); err != nil {
			return err
		}
	}
	for _, name := range p.Resume.Drop {
		if err := w.drop(name); err != nil {
			return err
		}
	}
	return w.competing()
}

// resumable returns an error if the command would not resume from the checkpoint, or if
// resuming would change what is trained.
func resumable(m *Match, r Resume, s, next step) error {
	p := m.Profile
	refuse := func(format string, args ...any) error { return &ResumeError{fmt.Sprintf(format, args...)} }
	before := r.Micro
	if before == 0 {
		before = s.perMicro
	}
	need := p.Resume.Needs
	have := r.Versions[need.Package]
	switch {
	case p.Resume.Mode == "none":
		return refuse("%s has no known way to resume from a checkpoint", p.Name)
	case r.Problem != "":
		return refuse("%s: %s", r.From, r.Problem)
	case need.Package != "" && have == "":
		return refuse("%s needs %s %s or later to resume, but the installed version is not known", p.Name, need.Package, need.Version)
	case need.Package != "" && profile.Older(have, need.Version):
		return refuse("%s needs %s %s or later to resume, but %s is installed", p.Name, need.Package, need.Version, have)
	case p.Unit == profile.Micros && before != next.perMicro && p.Name == "plain":
		return refuse("the checkpoint counts micro-batches (--knob unit=micro-batch), so with micro-batch %d instead of %d the command would skip or repeat samples; let the script count optimizer steps or samples", next.perMicro, before)
	case p.Unit == profile.Micros && before != next.perMicro && !atEpochs(m):
		return refuse("%s records its position in micro-batches, and this checkpoint may be from the middle of an epoch: the command would resume at a different position with micro-batch %d instead of %d; save only at the ends of epochs, and give the training's length in epochs", p.Name, next.perMicro, before)
	}
	return nil
}

// atEpochs reports whether the command writes checkpoints, and resumes from them, only at
// the ends of epochs. It returns false if a knob that could say otherwise cannot be read.
func atEpochs(m *Match) bool {
	layout := m.Profile.Checkpoints
	if layout.Cadence != profile.EveryEpoch {
		return false
	}
	for _, word := range layout.Within {
		if _, isKnob := m.Profile.Knobs[word]; isKnob {
			if given, err := m.Sets(word); given || err != nil {
				return false
			}
			continue
		}
		said := func(text string) bool { return says(text, word) }
		if slices.ContainsFunc(m.own(), said) || slices.ContainsFunc(m.files, func(d document) bool { return !d.script && said(string(d.content)) }) {
			return false
		}
	}
	return true
}

// unset matches what follows a key whose value is null. A configuration that a framework
// has printed contains every key, including those that nobody has set.
var unset = regexp.MustCompile(`^["']?\s*[:=]\s*["']?(null|None|~)\b`)

// says reports whether a word occurs in a text. A word that is a key with a null value
// does not count.
func says(text, word string) bool {
	for {
		_, behind, found := strings.Cut(text, word)
		if found && !unset.MatchString(behind) || !found {
			return found
		}
		text = behind
	}
}

// patched returns the path of the checkpoint to resume from: name itself, or a clone of
// it. A clone is needed if the framework insists on values in the checkpoint that would
// not match the next step, such as the batch size. before is the step that the checkpoint
// was written with.
func (w *rewriter) patched(name string, before, next step) (string, error) {
	name = path.Clean(name)
	clone := &Clone{Path: copyName(name), From: name, Files: map[string][]byte{}, original: map[string][]byte{}}
	for _, patch := range w.m.Profile.Resume.Patch {
		content, err := w.m.read(path.Join(name, patch.File))
		if err != nil {
			return "", &ResumeError{err.Error()}
		}
		change, changes, err := patchOf(w.m, content, patch, before, next)
		if err != nil {
			return "", &ResumeError{fmt.Sprintf("%s: %v", patch.File, err)}
		}
		if changes {
			clone.Files[patch.File], clone.original[patch.File] = edit.Apply(content, []edit.Edit{change}), content
		}
	}
	if len(clone.Files) == 0 {
		return name, nil
	}
	w.out.Clone = clone
	return clone.Path, nil
}

// patchOf returns the edit of one file, and whether the file has to change. It infers how
// many GPUs each process used from what the file says about the earlier step, because the
// command does not show whether a library used several GPUs from one process.
func patchOf(m *Match, content []byte, patch profile.Patch, before, next step) (change edit.Edit, changes bool, err error) {
	at, ok, err := edit.JSON.Find(content, patch.Key)
	if err != nil || !ok {
		return edit.Edit{}, false, err // older versions of the framework neither write nor read the key
	}
	said := command.Number(at.Text)
	for _, gpus := range []int{1, max(1, next.ranks), said / before.perMicro} {
		then, err := profile.Evaluate(patch.Value, amountsAt(m, before, gpus))
		if certain := !m.Launch.Alone(); err != nil || gpus < 1 || then != said && !certain {
			continue // this number of GPUs does not explain what the file says; under a launcher, one GPU is certain
		}
		now, err := profile.Evaluate(patch.Value, amountsAt(m, next, gpus))
		if err != nil || now == said {
			return edit.Edit{}, false, err
		}
		change, err = edit.JSON.Set(content, patch.Key, fmt.Sprint(now))
		return change, err == nil, err
	}
	return edit.Edit{}, false, fmt.Errorf("%s is %s, which is not what a run with micro-batch %d would have written", patch.Key, at.Text, before.perMicro)
}

// amountsAt returns the values of the names that an expression about step s may use. gpus
// is how many GPUs each process uses.
func amountsAt(m *Match, s step, gpus int) profile.Amounts {
	return profile.Amounts{profile.Micro: s.perMicro, profile.Accumulation: s.perRank, profile.Global: s.total(), "world": max(1, s.ranks), profile.Devices: gpus}
}

// Root returns the folder that holds the checkpoints, spelled as in the command.
func Root(m *Match) (string, error) {
	var failed error
	root := profile.Braces.ReplaceAllStringFunc(m.Profile.Checkpoints.Root, func(name string) string {
		name = strings.Trim(name, "{}")
		value, err := m.Text(name)
		if err == nil && value == "" {
			err = &KnobError{name, m.Where(name), "", "not given, but the checkpoints are stored under it; give it"}
		}
		if err != nil {
			failed = err
		}
		return value
	})
	if failed == nil && strings.Contains(root, "$") {
		failed = &KnobError{"checkpoints", "", root, "interpolations are not resolved; give the folder"}
	}
	if root == "" {
		root = "."
	}
	return root, failed
}
