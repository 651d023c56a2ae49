package wrap

import (
	"fmt"
	"path"
	"slices"
	"time"

	"headroom/runs"
)

// Past is what is known of a run's checkpoints apart from what is on disk now. With it, the
// checkpoints of this run are told from those of another one. A time alone would not do: the
// clock of a file server may be wrong, and a folder may have been copied.
type Past struct {
	runs.Known
	Begun  time.Time // when the run began; zero if every checkpoint counts as its own
	Listed bool      // Before is known; if not, a checkpoint older than Begun is not of this run

	still []runs.Mark // what the checkpoints looked like some time ago, after the command had ended
	over  bool        // no checkpoint is being written, or that does not matter
}

// clockError is how far the clocks of this machine and of a file system may differ before the
// times of files are not believed.
const clockError = 5 * time.Second

// foreign says why a checkpoint is not of this run, or must not be used in it. It returns ""
// if nothing speaks against it. perhaps reports that the checkpoint may be of this run all the
// same.
func (p Past) foreign(c Checkpoint) (why string, perhaps bool) {
	is := func(m runs.Mark) bool { return m.Same(c.mark()) }
	switch {
	case c.Time.IsZero() || p.Begun.IsZero(): // it cannot be read, which is a problem of its own
		return "", false
	case slices.ContainsFunc(p.Before, is):
		return "there before this run began", false
	case (!p.Listed || c.link) && c.Time.Before(p.Begun):
		return "written before this run began, at " + c.Time.Local().Format(time.DateTime), false
	case slices.ContainsFunc(p.Failed, is):
		return "the command could not resume from it", false
	case slices.ContainsFunc(p.Strange, is):
		return "perhaps written by another run, which kept its checkpoints in the same place", true
	case p.Shared != "" && !slices.ContainsFunc(p.Certain, is):
		return fmt.Sprintf("perhaps written by %s, which keeps its checkpoints in the same place", p.Shared), true
	}
	return "", false
}

// refuse makes the newest of the checkpoints that may or may not be of this run the newest one
// of all, if there is no other: with its problem, so that the command does not resume from it,
// and does not start over either.
func (c *Checkpoints) refuse() {
	if c.Newest != nil {
		return
	}
	for i := range c.Others {
		if c.Others[i].perhaps {
			c.Newest = &c.Others[i]
			return
		}
	}
}

// unfinished says that a checkpoint may still be being written, or returns "".
func (p Past) unfinished(c Checkpoint, now time.Time) (why string, settles bool) {
	is := func(m runs.Mark) bool { return m.Same(c.mark()) }
	if p.over || !c.Time.After(now.Add(-settled)) || slices.ContainsFunc(p.still, is) {
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
func (c *Checkpoints) strangers(p Past, now time.Time) {
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
func (c *Checkpoints) unsure(layout Layout) {
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
		return a.inode > 0 && a.inode == b.inode && a.device == b.device && a.Path != b.Path
	}
	return slices.DeleteFunc(slices.Clone(all), func(c Checkpoint) bool {
		return slices.ContainsFunc(all, func(other Checkpoint) bool {
			return same(c, other) && (c.link && !other.link || c.link == other.link && (c.Number == 0 && other.Number > 0 || c.Number == other.Number && c.Path > other.Path))
		})
	})
}

// partial gives a problem to each folder that lacks a file which all other folders have. A
// command that ran out of memory while it was saving may not have begun to write that file.
func partial(all []Checkpoint) {
	kinds := map[string]int{} // how many of the complete folders have a file
	names := func(c Checkpoint) []string {
		var names []string
		for _, part := range c.parts {
			if name := integer().ReplaceAllString(part, "#"); !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
		return names
	}
	folders := 0
	for _, c := range all {
		if len(c.parts) == 0 || c.Problem != "" && !c.settles {
			continue
		}
		folders++
		for _, name := range names(c) {
			kinds[name]++
		}
	}
	for i, c := range all {
		if len(c.parts) == 0 || c.Problem != "" && !c.settles {
			continue
		}
		have := names(c)
		for _, name := range sortedKeys(kinds) {
			if kinds[name] == folders-1 && folders > 1 && !slices.Contains(have, name) {
				all[i].Problem, all[i].settles = fmt.Sprintf("has no %s, unlike the others", path.Base(name)), false
				break
			}
		}
	}
}
