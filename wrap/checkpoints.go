package wrap

import (
	"cmp"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"headroom/memory"
)

// Checkpoint is one checkpoint on disk.
type Checkpoint struct {
	Path    string       `json:"path"`              // includes the folder, spelled as in the command
	Number  int64        `json:"number,omitempty"`  // the last integer in its name; 0 if there is none
	Time    time.Time    `json:"time"`              // when its newest file was last written
	Size    memory.Bytes `json:"size"`              // total size of its files
	Problem string       `json:"problem,omitempty"` // why it cannot be used; "" if it is complete
}

// Checkpoints lists a command's checkpoints.
type Checkpoints struct {
	Root   string       // the folder that holds them, spelled as in the command
	Newest *Checkpoint  // the newest complete one; nil if there is none
	All    []Checkpoint // newest first
	auto   bool         // the framework chooses by itself which one to resume from
}

// settled is the time that must have passed since the last write to a checkpoint before
// the checkpoint counts as finished. When headroom looks for a checkpoint to resume from,
// the process that wrote it has ended, but a network file system may still lag by a
// second.
const settled = 2 * time.Second

// Checkpoints finds the checkpoints that the command has left on disk. now is the current
// time. A checkpoint older than since, the start of the run, belongs to another training
// run and is not listed.
func (m *Match) Checkpoints(now, since time.Time) (Checkpoints, error) {
	layout := m.Profile.Checkpoints
	if layout.Glob == "" {
		return Checkpoints{}, &ResumeError{m.Profile.Name + " does not say where checkpoints are; name them with --knob checkpoints=GLOB"}
	}
	root, err := m.root()
	if err != nil {
		return Checkpoints{}, err
	}
	found := Checkpoints{Root: root, auto: m.Profile.Resume.Mode == "auto"}
	if m.given.Files == nil {
		return found, nil
	}
	files, err := fs.Sub(m.given.Files, m.Command.abs(root))
	if err != nil {
		return Checkpoints{}, fmt.Errorf("look for checkpoints: %w", err)
	}
	names, err := fs.Glob(files, layout.Glob)
	if err != nil {
		return Checkpoints{}, fmt.Errorf("look for checkpoints: %w", err)
	}
	for _, name := range names {
		if strings.HasPrefix(path.Base(name), ".headroom-") {
			continue
		}
		c := look(files, name, layout, now)
		if c.Time.Before(since) {
			continue
		}
		c.Path = path.Join(root, name)
		found.All = append(found.All, c)
	}
	found.sort(layout, pointed(files, layout))
	return found, nil
}

// Where returns the pattern of the paths at which headroom looks for the command's
// checkpoints, or "" if it is not known.
func (m *Match) Where() string {
	root, err := m.root()
	if err != nil || m.Profile.Checkpoints.Glob == "" {
		return ""
	}
	return below(m.Command.Dir, path.Join(root, m.Profile.Checkpoints.Glob))
}

// root returns the folder that holds the checkpoints, spelled as in the command.
func (m *Match) root() (string, error) {
	var failed error
	root := braces().ReplaceAllStringFunc(m.Profile.Checkpoints.Root, func(name string) string {
		name = strings.Trim(name, "{}")
		value, err := m.text(name)
		if err == nil && value == "" {
			err = &KnobError{name, m.places(name), "", "not given, but the checkpoints are stored under it; give it"}
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

// sort orders the checkpoints from newest to oldest and finds the newest complete one.
// named is the checkpoint that the framework's pointer file names. If the framework has
// such a file, any checkpoint newer than named counts as unfinished.
func (c *Checkpoints) sort(layout Layout, named string) {
	slices.SortStableFunc(c.All, func(a, b Checkpoint) int {
		if d := cmp.Compare(b.Number, a.Number); d != 0 && !layout.Time {
			return d
		}
		return b.Time.Compare(a.Time)
	})
	named = path.Join(c.Root, named)
	count, err := strconv.ParseInt(path.Base(named), 10, 64) // a checkpoint's name may be padded with zeros while the pointer is not
	at := slices.IndexFunc(c.All, func(one Checkpoint) bool { return one.Path == named || err == nil && one.Number == count })
	for i := range max(0, at) {
		if layout.Pointer != "" && c.All[i].Problem == "" {
			c.All[i].Problem = layout.Pointer + " does not name it yet"
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
func pointed(files fs.FS, layout Layout) string {
	if layout.Pointer == "" {
		return ""
	}
	content, err := fs.ReadFile(files, layout.Pointer)
	name := strings.TrimSpace(string(content))
	if err != nil || name == "" {
		return ""
	}
	if _, err := strconv.ParseInt(name, 10, 64); layout.Pointed == "" || err == nil {
		return path.Base(name)
	}
	return strings.ReplaceAll(layout.Pointed, "{}", name)
}

var integer = lazily(`\d+`)

// look examines the checkpoint called name. If the checkpoint cannot be used, its Problem
// says why.
func look(files fs.FS, name string, layout Layout, now time.Time) Checkpoint {
	var c Checkpoint
	if all := integer().FindAllString(path.Base(name), -1); len(all) > 0 {
		c.Number, _ = strconv.ParseInt(all[len(all)-1], 10, 64) // a number that is too large becomes the largest int64
	}
	err := fs.WalkDir(files, name, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil && (!d.IsDir() || c.Time.IsZero()) && info.ModTime().After(c.Time) {
			c.Time = info.ModTime()
		}
		if err == nil && !d.IsDir() {
			c.Size += memory.Bytes(info.Size())
		}
		return err
	})
	switch {
	case err != nil:
		c.Problem = err.Error()
	case c.Time.After(now.Add(-settled)):
		c.Problem = "only just written, perhaps not complete yet"
	default:
		c.Problem = incomplete(files, name, layout)
	}
	return c
}

// incomplete says what is missing or broken in a checkpoint. It returns "" if nothing is.
func incomplete(files fs.FS, name string, layout Layout) string {
	info, err := fs.Stat(files, name)
	if err != nil {
		return err.Error()
	}
	if !info.IsDir() {
		return broken(files, name)
	}
	inside, err := fs.Sub(files, name)
	if err != nil {
		return err.Error()
	}
	for _, patterns := range layout.Complete {
		if problem := oneIs(inside, patterns); problem != "" {
			return problem
		}
	}
	return ""
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
