package checkpoints

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"time"

	"headroom/runs"
	"headroom/wrap/profile"
)

// Past is what is known of a run's checkpoints apart from what is on disk now. With it, the
// checkpoints of this run are told from those of another one. A time alone would not do: the
// clock of a file server may be wrong, and a folder may have been copied.
type Past struct {
	runs.Known
	Begun  time.Time // when the run began; zero if every checkpoint counts as its own
	Listed bool      // Before is known; if not, a checkpoint older than Begun is not of this run

	// Most is the largest number of a checkpoint that fits the steps which the run has reported,
	// with a wide margin; 0 if that is not known, or if the numbers may not be those of steps.
	Most int64
	// Writer says which process was seen to write a file: one of the command, or the one with the
	// PID other. It may be nil.
	Writer func(FileKey) (own bool, other int)

	Open  []Opened    // the files that other processes have open for writing
	Still []runs.Mark // what the checkpoints looked like some time ago, after the command had ended
	Over  bool        // no checkpoint is being written, or that does not matter
}

// clockError is how far the clocks of this machine and of a file system may differ before the
// times of files are not believed.
const clockError = 5 * time.Second

// foreign says why a checkpoint is not of this run, or must not be used in it. It returns ""
// if nothing speaks against it. perhaps reports that the checkpoint may be of this run all the
// same.
func (p Past) foreign(c Checkpoint) (why string, perhaps bool) {
	is := func(m runs.Mark) bool { return m.Same(c.Mark()) }
	switch {
	case c.Time.IsZero() || p.Begun.IsZero(): // it cannot be read, which is a problem of its own
		return "", false
	case slices.ContainsFunc(p.Before, is):
		return "there before this run began", false
	case (!p.Listed || c.link) && c.Time.Before(p.Begun):
		return "written before this run began, at " + c.Time.Local().Format(time.DateTime), false
	case slices.ContainsFunc(p.Failed, is):
		return "the command could not resume from it", false
	}
	if own, other := p.writer(c); own {
		return "", false
	} else if other > 0 {
		return fmt.Sprintf("written by process %d, which is not of this run", other), false
	}
	switch {
	case slices.ContainsFunc(p.Strange, is):
		return "perhaps written by another run, which kept its checkpoints in the same place", true
	case p.Shared != "" && !slices.ContainsFunc(p.Certain, is):
		return fmt.Sprintf("perhaps written by %s, which keeps its checkpoints in the same place", p.Shared), true
	}
	return "", false
}

// writer returns who was seen to write a checkpoint: a process of the command, or another one.
func (p Past) writer(c Checkpoint) (own bool, other int) {
	if p.Writer == nil {
		return false, 0
	}
	for _, key := range c.keys {
		mine, foreign := p.Writer(key)
		if foreign > 0 {
			return false, foreign
		}
		own = own || mine
	}
	return own, 0
}

// series is what the names of the checkpoints of one training have in common. Two trainings
// may write to one folder, but then under different names.
type series struct{ folder, stem string }

func (c Checkpoint) series() series {
	s := series{folder: path.Dir(c.Path)}
	if name := path.Base(c.Path); integer.MatchString(name) {
		s.stem = integer.ReplaceAllString(name, "#")
	}
	return s
}

// apart reports whether two checkpoints seem to be of two trainings: they are in different
// folders, or both have a number, in names that differ in more than that. A name without a
// number, such as best, may belong to any.
func (s series) apart(other series) bool {
	return s.folder != other.folder || s.stem != "" && other.stem != "" && s.stem != other.stem
}

// beyond moves a checkpoint whose number is larger than any that this run can have reached
// from All to Others, if another number in the same series fits: then they do count steps.
func (c *Found) beyond(p Past) {
	fits := func(one Checkpoint) bool { return one.Number > 0 && one.Number <= p.Most }
	own := slices.Clone(c.All)
	c.All = slices.DeleteFunc(c.All, func(one Checkpoint) bool {
		another := func(other Checkpoint) bool { return fits(other) && other.series() == one.series() }
		if written, _ := p.writer(one); p.Most == 0 || written || one.Number <= p.Most || !slices.ContainsFunc(own, another) {
			return false
		}
		one.Perhaps = one.Problem == ""
		one.Problem = "this run has not got that far, so it seems to be of another one"
		c.Others = append(c.Others, one)
		return true
	})
}

// elsewhere finds out whether the newest checkpoint may be of another training, which has
// written to the same place in this run's time. If another one was seen to be written by the
// command, that is the newest instead; else the newest gets a problem that names both.
func (c *Found) elsewhere(p Past) {
	seen := func(s series) bool {
		return slices.ContainsFunc(c.All, func(one Checkpoint) bool { own, _ := p.writer(one); return own && one.series() == s })
	}
	saved := func(one Checkpoint) bool {
		return slices.ContainsFunc(p.Saved, func(m runs.Mark) bool { return m.Same(one.Mark()) })
	}
	if p.Begun.IsZero() || c.Newest == nil || c.Newest.Problem != "" || saved(*c.Newest) || seen(c.Newest.series()) {
		return
	}
	newest := *c.Newest
	for i, other := range c.All {
		if other.Problem != "" || saved(other) || !newest.series().apart(other.series()) {
			continue
		}
		if seen(other.series()) {
			for j := range i {
				if c.All[j].Problem == "" && c.All[j].series().apart(other.series()) {
					c.All[j].Problem = fmt.Sprintf("not seen to be written by this run, unlike %s", other.Path)
				}
			}
			c.Newest = &c.All[slices.IndexFunc(c.All, func(one Checkpoint) bool { return one.Problem == "" })]
			return
		}
		c.Newest.Perhaps = true
		c.Newest.Problem = fmt.Sprintf("%s was written during this run, too, and it is not known which of them is this run's; name its checkpoints alone with --knob checkpoints=PATTERN", other.Path)
		return
	}
}

// refuse makes the newest of the checkpoints that may or may not be of this run the newest one
// of all, if there is no other: with its problem, so that the command does not resume from it,
// and does not start over either.
func (c *Found) refuse() {
	if c.Newest != nil {
		return
	}
	for i := range c.Others {
		if c.Others[i].Perhaps {
			c.Newest = &c.Others[i]
			return
		}
	}
}

// unfinished says that a checkpoint may still be being written, or returns "".
func (p Past) unfinished(c Checkpoint, now time.Time) (why string, settles bool) {
	for _, o := range p.Open {
		if slices.Contains(c.keys, o.key) {
			return fmt.Sprintf("process %d has it open for writing", o.pid), false
		}
	}
	is := func(m runs.Mark) bool { return m.Same(c.Mark()) }
	if p.Over || !c.Time.After(now.Add(-Settled)) || slices.ContainsFunc(p.Still, is) {
		return "", false
	}
	return "only just written, perhaps not complete yet", true
}

// believable reports whether the time of a checkpoint may be that of a write in this run.
func (p Past) believable(c Checkpoint, now time.Time) bool {
	return p.Begun.IsZero() || !c.Time.Before(p.Begun.Add(-clockError)) && !c.Time.After(now.Add(clockError))
}

// credible reports whether the times of all checkpoints may be those of writes in this run,
// so that their order may be that of their times.
func (p Past) credible(all []Checkpoint, now time.Time) bool {
	return !slices.ContainsFunc(all, func(c Checkpoint) bool { return !c.Time.IsZero() && !p.believable(c, now) })
}

// strangers moves the checkpoints whose times cannot be those of writes in this run from All
// to Others, if the times of other checkpoints can be: then the clock is right, and they have
// been copied from elsewhere. If no time is believable, the clock is wrong, and all may be of
// this run.
func (c *Found) strangers(p Past, now time.Time) {
	fits := func(one Checkpoint) bool { return p.believable(one, now) && !one.Time.IsZero() }
	if !slices.ContainsFunc(c.All, fits) {
		return
	}
	c.All = slices.DeleteFunc(c.All, func(one Checkpoint) bool {
		if fits(one) || one.Time.IsZero() {
			return false
		}
		one.Problem = fmt.Sprintf("its time, %s, is not in this run, unlike the times of others", one.Time.Local().Format(time.DateTime))
		c.Others = append(c.Others, one)
		return true
	})
}

// unsure gives the newest checkpoint a problem if a command that chooses by itself might
// resume from another one instead, which is not of this run.
func (c *Found) unsure(layout profile.Layout) {
	if c.Newest == nil || !c.auto || layout.Pointer != "" {
		return
	}
	for _, other := range c.Others {
		if other.Number > c.Newest.Number || other.Time.After(c.Newest.Time) {
			c.Newest.Problem = fmt.Sprintf("the command looks for its checkpoint itself, and may choose %s, which is not of this run (%s); move that elsewhere", other.Path, other.Problem)
			return
		}
	}
}

// unlinked returns all without the links to other checkpoints in it: they are the same
// checkpoints under other names, such as latest.
func unlinked(all []Checkpoint) []Checkpoint {
	same := func(a, b Checkpoint) bool {
		return a.key.Inode > 0 && a.key == b.key && a.Path != b.Path
	}
	return slices.DeleteFunc(slices.Clone(all), func(c Checkpoint) bool {
		return slices.ContainsFunc(all, func(other Checkpoint) bool {
			return same(c, other) && (c.link && !other.link || c.link == other.link && (c.Number == 0 && other.Number > 0 || c.Number == other.Number && c.Path > other.Path))
		})
	})
}

// kinds returns the names of the checkpoint's files, with # in place of numbers. It returns none
// if the checkpoint is no folder, or is known not to be complete.
func (c Checkpoint) kinds() []string {
	if c.Problem != "" && !c.Settles {
		return nil
	}
	var names []string
	for _, part := range c.parts {
		if name := integer.ReplaceAllString(part, "#"); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// partial gives a problem to each folder that lacks a file which all other folders have. A
// command that ran out of memory while it was saving may not have begun to write that file.
func partial(all []Checkpoint) {
	folders, have := 0, map[string]int{} // how many of the complete folders have a file
	for _, c := range all {
		kinds := c.kinds()
		if len(kinds) > 0 {
			folders++
		}
		for _, name := range kinds {
			have[name]++
		}
	}
	for i, c := range all {
		kinds := c.kinds()
		if len(kinds) == 0 || folders == 1 {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(have)) {
			if have[name] == folders-1 && !slices.Contains(kinds, name) {
				all[i].Problem, all[i].Settles = fmt.Sprintf("has no %s, unlike the others", path.Base(name)), false
				break
			}
		}
	}
}
