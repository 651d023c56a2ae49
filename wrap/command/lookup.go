package command

import (
	"errors"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Startable checks beforehand whether the program of a command can be started. The error
// is a *[StartError], or nil if nothing is known that would prevent the start.
func (c Line) Startable() error {
	_, err := c.Program()
	return err
}

// Program returns the file that a command runs, found as a shell finds it. A name with a
// slash is a path relative to the command's folder. Any other name is looked up in the
// command's own PATH. The error is a *[StartError].
func (c Line) Program() (string, error) {
	if len(c.Args) == 0 {
		return "", &StartError{Code: 127, Err: errors.New("no command")}
	}
	name := c.Args[0]
	failed := &StartError{Program: name, Code: 127, Err: errors.New("command not found")}
	for _, candidate := range c.Candidates(name) {
		err := executable(c.From(candidate))
		switch {
		case err == nil:
			return candidate, nil
		case errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ENOTDIR):
			if candidate == name {
				failed.Err = syscall.ENOENT
			}
		default: // the file exists, which is more useful to know
			failed.Code, failed.Err = 126, err
		}
	}
	return "", failed
}

// executable returns the reason why a file cannot be executed, or nil if it can.
func executable(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return errors.Unwrap(err) // without the path, which may differ from what the user typed
	}
	if info.IsDir() {
		return syscall.EISDIR
	}
	return unix.Faccessat(unix.AT_FDCWD, path, unix.X_OK, unix.AT_EACCESS)
}

// Environment returns the command's environment, with only the last of duplicate
// variables. Programs would otherwise find the first one.
func (c Line) Environment() []string {
	last := map[string]int{}
	for i, entry := range c.Env {
		key, _, _ := strings.Cut(entry, "=")
		last[key] = i
	}
	all := make([]string, 0, len(last))
	for i, entry := range c.Env {
		if key, _, _ := strings.Cut(entry, "="); last[key] == i {
			all = append(all, entry)
		}
	}
	return all
}
