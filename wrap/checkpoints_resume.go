package wrap

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"headroom/wrap/command"
	"headroom/wrap/edit"
	"headroom/wrap/profile"
)

// Resume says which checkpoint a command resumes from.
type Resume struct {
	Checkpoint *Checkpoint       // nil to start from the beginning
	Micro      int               // the micro-batch that the checkpoint was written with; 0 means the command's own
	Versions   map[string]string // installed versions by Python package, as far as they are known
}

// ResumeError says why a command cannot resume from a checkpoint, or could do so only by
// changing what is trained.
type ResumeError struct{ Reason string }

func (e *ResumeError) Error() string { return "cannot resume: " + e.Reason }

// Rename sets a checkpoint aside by giving it another name in the same folder.
type Rename struct{ From, To string }

// Aside returns the renames that keep a framework from resuming from an incomplete
// checkpoint. Only a framework that chooses its checkpoint by itself needs them, not one
// that is given a path. They cover the incomplete checkpoints that are newer than the
// newest complete one.
func (c Checkpoints) Aside() []Rename {
	var all []Rename
	for _, one := range c.All {
		if one.Problem == "" || !c.auto {
			break
		}
		dir, name := path.Split(one.Path)
		all = append(all, Rename{one.Path, dir + ".headroom-incomplete-" + name})
	}
	return all
}

// SetAside carries out the renames of checkpoints of c. It overwrites and removes nothing: if
// a new name is taken, the error wraps [fs.ErrExist].
func SetAside(c command.Line, renames []Rename) error {
	for _, r := range renames {
		from, to := c.From(r.From), c.From(r.To)
		if _, err := os.Lstat(to); err == nil {
			return fmt.Errorf("set aside %s: %s: %w", r.From, r.To, fs.ErrExist)
		}
		if err := os.Rename(from, to); err != nil {
			return fmt.Errorf("set aside: %w", err)
		}
	}
	return nil
}

// resume writes the settings that make the command resume from a checkpoint.
func (w *rewriter) resume(r Resume, s, next step) error {
	if r.Checkpoint == nil {
		return nil // most frameworks fail if they are told to resume and there is no checkpoint
	}
	p := w.m.Profile
	if err := w.m.resumable(r, s, next); err != nil {
		return err
	}
	if p.Resume.Mode == "auto" && len(p.Resume.Set)+len(p.Resume.Drop) == 0 {
		return nil
	}
	before := s
	if r.Micro > 0 {
		before.perMicro, before.perRank = r.Micro, s.perMicro*s.perRank/r.Micro
	}
	from, err := w.patched(r.Checkpoint.Path, before, next)
	if err != nil {
		return err
	}
	root, err := w.m.root()
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
func (m *Match) resumable(r Resume, s, next step) error {
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
	case r.Checkpoint.Problem != "":
		return refuse("%s: %s", r.Checkpoint.Path, r.Checkpoint.Problem)
	case need.Package != "" && have == "":
		return refuse("%s needs %s %s or later to resume, but the installed version is not known", p.Name, need.Package, need.Version)
	case need.Package != "" && profile.Older(have, need.Version):
		return refuse("%s needs %s %s or later to resume, but %s is installed", p.Name, need.Package, need.Version, have)
	case p.Unit == profile.Micros && before != next.perMicro && p.Name == "plain":
		return refuse("the checkpoint counts micro-batches (--knob unit=micro-batch), so with micro-batch %d instead of %d the command would skip or repeat samples; let the script count optimizer steps or samples", next.perMicro, before)
	case p.Unit == profile.Micros && before != next.perMicro && !m.atEpochs():
		return refuse("%s records its position in micro-batches, and this checkpoint may be from the middle of an epoch: the command would resume at a different position with micro-batch %d instead of %d; save only at the ends of epochs, and give the training's length in epochs", p.Name, next.perMicro, before)
	}
	return nil
}

// atEpochs reports whether the command writes checkpoints, and resumes from them, only at
// the ends of epochs. It returns false if a knob that could say otherwise cannot be read.
func (m *Match) atEpochs() bool {
	layout := m.Profile.Checkpoints
	if layout.Cadence != profile.EveryEpoch {
		return false
	}
	for _, word := range layout.Within {
		if _, isKnob := m.Profile.Knobs[word]; isKnob {
			if given, err := m.givenOwn(word); given || err != nil {
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
		change, changes, err := w.m.patch(content, patch, before, next)
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

// patch returns the edit of one file, and whether the file has to change. It infers how
// many GPUs each process used from what the file says about the earlier step, because the
// command does not show whether a library used several GPUs from one process.
func (m *Match) patch(content []byte, patch profile.Patch, before, next step) (change edit.Edit, changes bool, err error) {
	at, ok, err := edit.JSON.Find(content, patch.Key)
	if err != nil || !ok {
		return edit.Edit{}, false, err // older versions of the framework neither write nor read the key
	}
	said := command.Number(at.Text)
	for _, gpus := range []int{1, max(1, next.ranks), said / before.perMicro} {
		then, err := profile.Evaluate(patch.Value, m.amounts(before, gpus))
		if certain := !m.Launch.Alone(); err != nil || gpus < 1 || then != said && !certain {
			continue // this number of GPUs does not explain what the file says; under a launcher, one GPU is certain
		}
		now, err := profile.Evaluate(patch.Value, m.amounts(next, gpus))
		if err != nil || now == said {
			return edit.Edit{}, false, err
		}
		change, err = edit.JSON.Set(content, patch.Key, fmt.Sprint(now))
		return change, err == nil, err
	}
	return edit.Edit{}, false, fmt.Errorf("%s is %s, which is not what a run with micro-batch %d would have written", patch.Key, at.Text, before.perMicro)
}

// amounts returns the values of the names that an expression about step s may use. gpus
// is how many GPUs each process uses.
func (m *Match) amounts(s step, gpus int) profile.Amounts {
	return profile.Amounts{profile.Micro: s.perMicro, profile.Accumulation: s.perRank, profile.Global: m.total(s), "world": max(1, s.ranks), profile.Devices: gpus}
}

// Write creates r's copies and its clone beside the originals. It replaces files that
// headroom wrote earlier, and leaves the user's files alone.
func (r Rewritten) Write() error {
	for _, c := range r.Copies {
		if err := replace(r.Command.From(c.Path), c.Content, r.Command.From(c.From)); err != nil {
			return fmt.Errorf("write a copy of %s: %w", c.From, err)
		}
	}
	if r.Clone == nil {
		return nil
	}
	if err := r.Clone.write(r.Command); err != nil {
		return fmt.Errorf("write a copy of %s: %w", r.Clone.From, err)
	}
	return nil
}

// Remove deletes the copies that Write made. It leaves the clone.
func (r Rewritten) Remove() error {
	var all []error
	for _, c := range r.Copies {
		all = append(all, os.Remove(r.Command.From(c.Path)))
	}
	return errors.Join(all...)
}

// replace writes content to a temporary file in the same folder and renames that file to
// name, so that no reader ever sees half a file. Who may read it is as with the file from: a
// configuration may hold secrets.
func replace(name string, content []byte, from string) error {
	mode := os.FileMode(0o644)
	if info, err := os.Stat(from); err == nil {
		mode = info.Mode().Perm() | 0o600
	}
	f, err := os.CreateTemp(filepath.Dir(name), ".headroom-*")
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	err = errors.Join(err, f.Chmod(mode), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// write creates the folder of a clone for the command l from scratch. Files that differ are
// written, and all others become links.
func (c *Clone) write(l command.Line) error {
	from, to := l.From(c.From), l.From(c.Path)
	if err := os.RemoveAll(to); err != nil { // it holds only links and files that headroom wrote
		return err
	}
	if err := os.Mkdir(to, 0o755); err != nil {
		return err
	}
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if content, differs := c.Files[e.Name()]; differs {
			err = replace(filepath.Join(to, e.Name()), content, filepath.Join(from, e.Name()))
		} else {
			err = os.Symlink(filepath.Join("..", filepath.Base(from), e.Name()), filepath.Join(to, e.Name()))
		}
		if err != nil {
			return err
		}
	}
	return nil
}
