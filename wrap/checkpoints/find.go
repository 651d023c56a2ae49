package checkpoints

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"headroom/memory"
	"headroom/runs"
	"headroom/wrap/command"
	"headroom/wrap/profile"
	"headroom/wrap/rewrite"
)

// Checkpoint is one checkpoint on disk.
type Checkpoint struct {
	Path    string       `json:"path"`              // includes the folder, spelled as in the command
	Number  int64        `json:"number,omitempty"`  // the last integer in its name; 0 if there is none
	Time    time.Time    `json:"time"`              // when its newest file was last written
	Size    memory.Bytes `json:"size"`              // total size of its files
	Problem string       `json:"problem,omitempty"` // why it cannot be used; "" if it is complete

	Perhaps bool `json:"-"` // it is complete, and may be of this run; Problem says why that is not certain
	Settles bool `json:"-"` // Problem is only that it may still be being written

	key   FileKey   // of the file or folder; zero if it is not known
	link  bool      // it is a link to the file or folder
	parts []string  // if it is a folder: the paths of its files in it, each with a slash in front
	keys  []FileKey // its files
}

// Mark returns what c looks like now.
func (c Checkpoint) Mark() runs.Mark {
	return runs.Mark{Path: c.Path, File: c.key.Inode, Size: c.Size, Time: c.Time}
}

// Found lists a command's checkpoints.
type Found struct {
	Root   string       // the folder that holds them, spelled as in the command
	Newest *Checkpoint  // the newest complete one; nil if there is none. It may have a problem because of which the command cannot resume from it
	All    []Checkpoint // those of this run, newest first
	Others []Checkpoint // those that are not of this run; Problem says why
	auto   bool         // the framework chooses by itself which one to resume from
}

// Settled is the time that must have passed since the last write to a checkpoint before
// the checkpoint counts as finished. When headroom looks for a checkpoint to resume from,
// the process that wrote it has ended, but a network file system may still lag by a
// second.
const Settled = 2 * time.Second

// Find finds the checkpoints that the command has left on disk. now is the current
// time. past tells which of them belong to this run.
func Find(m *rewrite.Match, now time.Time, past Past) (Found, error) {
	n, err := NamesOf(m)
	layout, files := m.Profile.Checkpoints, n.files
	found := Found{Root: n.root, auto: m.Profile.Resume.Mode == "auto"}
	if err != nil || files == nil {
		return found, err
	}
	for _, name := range n.names {
		c := look(files, found.Root, name, layout)
		switch why, perhaps := past.foreign(c); {
		case why != "":
			c.Perhaps = perhaps && c.Problem == ""
			c.Problem = why
			found.Others = append(found.Others, c)
			continue
		case c.Problem == "":
			c.Problem, c.Settles = past.unfinished(c, now)
		}
		found.All = append(found.All, c)
	}
	found.All = unlinked(found.All)
	if len(layout.Complete) == 0 {
		partial(found.All)
	}
	found.strangers(past, now)
	found.beyond(past)
	found.sort(layout, pointed(files, layout), past.credible(found.All, now))
	found.unsure(layout)
	found.elsewhere(past)
	found.refuse()
	return found, nil
}

// Where returns the pattern of the paths at which headroom looks for the command's
// checkpoints, or "" if it is not known.
func Where(m *rewrite.Match) string {
	root, err := rewrite.Root(m)
	if err != nil || m.Profile.Checkpoints.Glob == "" {
		return ""
	}
	return m.Command.From(path.Join(root, m.Profile.Checkpoints.Glob))
}

// sort orders the checkpoints from newest to oldest and finds the newest complete one.
// named is the checkpoint that the framework's pointer file names. If the framework has
// such a file, any checkpoint newer than named counts as unfinished.
//
// If the order is that of time, but the times cannot be believed, the numbers decide.
func (c *Found) sort(layout profile.Layout, named string, credible bool) {
	newer := func(a, b Checkpoint) int {
		if d := cmp.Compare(b.Number, a.Number); d != 0 && (!layout.Time || !credible) {
			return d
		}
		return b.Time.Compare(a.Time)
	}
	slices.SortStableFunc(c.All, newer)
	slices.SortStableFunc(c.Others, func(a, b Checkpoint) int { return cmp.Or(cmp.Compare(b.Number, a.Number), newer(a, b)) })
	named = path.Join(c.Root, named)
	count, err := strconv.ParseInt(path.Base(named), 10, 64) // a checkpoint's name may be padded with zeros while the pointer is not
	at := slices.IndexFunc(c.All, func(one Checkpoint) bool { return one.Path == named || err == nil && one.Number == count })
	for i := range max(0, at) {
		if layout.Pointer != "" && c.All[i].Problem == "" {
			c.All[i].Problem = layout.Pointer + " does not name it yet"
			c.All[i].Settles = false
		}
	}
	for i := range c.All {
		if c.All[i].Problem == "" {
			c.Newest = &c.All[i]
			return
		}
	}
}

// pointed returns the name of the checkpoint that the pointer file names, or "" if there
// is none.
func pointed(files fs.FS, layout profile.Layout) string {
	if layout.Pointer == "" {
		return ""
	}
	content, err := command.ReadFile(files, layout.Pointer)
	name := strings.TrimSpace(string(content))
	if err != nil || name == "" {
		return ""
	}
	if _, err := strconv.ParseInt(name, 10, 64); layout.Pointed == "" || err == nil {
		return path.Base(name)
	}
	return strings.ReplaceAll(layout.Pointed, "{}", name)
}

var integer = regexp.MustCompile(`\d+`)

// look examines the checkpoint called name. If the checkpoint cannot be used, its Problem
// says why.
func look(files fs.FS, root, name string, layout profile.Layout) Checkpoint {
	c, mode := glance(files, root, name)
	if c.Problem != "" {
		return c
	}
	if what := command.Special(mode); what != "" {
		c.Problem = "it " + what
	} else {
		c.Problem = incomplete(files, name, mode.IsDir(), c.parts, layout)
	}
	return c
}

// glance returns the checkpoint called name, as far as it can be seen without opening a file,
// and its mode. root is put in front of its path.
func glance(files fs.FS, root, name string) (Checkpoint, fs.FileMode) {
	c := Checkpoint{Path: path.Join(root, name)}
	if all := integer.FindAllString(path.Base(name), -1); len(all) > 0 {
		c.Number, _ = strconv.ParseInt(all[len(all)-1], 10, 64) // a number that is too large becomes the largest int64
	}
	info, err := fs.Stat(files, name)
	if err != nil {
		c.Problem = reason(err)
		return c, 0
	}
	c.key = keyOf(info)
	if itself, err := fs.Lstat(files, name); err == nil {
		c.link = itself.Mode()&fs.ModeSymlink != 0
	}
	err = fs.WalkDir(files, name, func(at string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil && (!d.IsDir() || c.Time.IsZero()) && info.ModTime().After(c.Time) {
			c.Time = info.ModTime()
		}
		if err == nil && !d.IsDir() {
			c.Size += memory.Bytes(info.Size())
			c.keys = append(c.keys, keyOf(info))
			if part := strings.TrimPrefix(at, name); part != "" {
				c.parts = append(c.parts, part)
			}
		}
		return err
	})
	if err != nil {
		c.Problem = reason(err)
	}
	return c, info.Mode()
}

// incomplete says what is missing or broken in a checkpoint. It returns "" if nothing is.
// parts are the files in the checkpoint, if it is a folder.
func incomplete(files fs.FS, name string, isDir bool, parts []string, layout profile.Layout) string {
	if !isDir {
		return broken(files, name)
	}
	for _, patterns := range layout.Complete {
		if problem := oneIs(folder{files, name}, patterns); problem != "" {
			return problem
		}
	}
	switch {
	case len(layout.Complete) > 0:
		return ""
	case len(parts) == 0:
		return "it has no files"
	}
	for _, part := range parts {
		if problem := broken(files, name+part); problem != "" && !marker(files, name+part) {
			return problem
		}
	}
	return ""
}

// reason returns why something cannot be read, without its path, which the sentence has.
func reason(err error) string {
	var of *fs.PathError
	if errors.As(err, &of) {
		return "cannot be read: " + of.Err.Error()
	}
	return err.Error()
}

// marker reports whether an empty file may be meant to be empty: its name has no ending, as
// in DONE, _SUCCESS or .is_checkpoint.
func marker(files fs.FS, name string) bool {
	info, err := fs.Stat(files, name)
	return err == nil && info.Mode().IsRegular() && info.Size() == 0 && path.Ext(strings.TrimLeft(path.Base(name), "._")) == ""
}

// oneIs checks that at least one file matches one of the patterns, and that every
// matching file is whole. It returns what is wrong, or "" if nothing is.
func oneIs(files fs.FS, patterns []string) string {
	some := false
	for _, pattern := range patterns {
		names, err := fs.Glob(files, pattern)
		if err != nil {
			return err.Error()
		}
		for _, name := range names {
			some = true
			if problem := broken(files, name); problem != "" {
				return problem
			}
		}
	}
	if !some {
		return "no " + strings.Join(patterns, " or ")
	}
	return ""
}

// Present returns what all the checkpoints look like that are there.
func Present(m *rewrite.Match) []runs.Mark {
	names, err := NamesOf(m)
	if err != nil {
		return nil
	}
	return names.Marks()
}

// Marks returns what the checkpoints of this run look like.
func (c Found) Marks() []runs.Mark {
	marks := make([]runs.Mark, len(c.All))
	for i, one := range c.All {
		marks[i] = one.Mark()
	}
	return marks
}

// Skipped says of each checkpoint that seems to be newer than the newest complete one why it
// is not used: in a sentence for each reason.
func (c Found) Skipped() (why []string) {
	seems := func(one Checkpoint) bool {
		return c.Newest == nil || one.Number > c.Newest.Number || one.Time.After(c.Newest.Time) || one.Time.IsZero()
	}
	var reasons []string
	paths := map[string][]string{}
	for _, one := range slices.Concat(c.All, c.Others) {
		if one.Problem == "" || !seems(one) {
			continue
		}
		if len(paths[one.Problem]) == 0 {
			reasons = append(reasons, one.Problem)
		}
		paths[one.Problem] = append(paths[one.Problem], one.Path)
	}
	for _, reason := range reasons {
		more := ""
		if n := len(paths[reason]); n > 1 {
			more = fmt.Sprintf(" (and %d more)", n-1)
		}
		why = append(why, fmt.Sprintf("not used: %s%s: %s", paths[reason][0], more, reason))
	}
	return why
}
