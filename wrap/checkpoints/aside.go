package checkpoints

import (
	"fmt"
	"io/fs"
	"os"
	"path"

	"headroom/wrap/command"
)

// Rename sets a checkpoint aside by giving it another name in the same folder.
type Rename struct{ From, To string }

// Aside returns the renames that keep a framework from resuming from an incomplete
// checkpoint. Only a framework that chooses its checkpoint by itself needs them, not one
// that is given a path. They cover the incomplete checkpoints that are newer than the
// newest complete one.
func (c Found) Aside() []Rename {
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
