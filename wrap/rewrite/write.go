package rewrite

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"headroom/wrap/command"
)

// Write creates r's copies and its clone beside the originals. It replaces files that
// headroom wrote earlier, and leaves the user's files alone.
func (r Result) Write() error {
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
func (r Result) Remove() error {
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
