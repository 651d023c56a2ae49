package wrap

import (
	"errors"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Startable says why the program of a command cannot be started, as far as that is
// known beforehand: a *[StartError], nil if nothing is in the way.
func (c Command) Startable() error {
	_, err := c.program()
	return err
}

// program is the file that a command runs, found as a shell finds it: a name with a
// slash is a path from the command's folder, any other is looked up in the command's
// own PATH. The error is a *[StartError].
func (c Command) program() (string, error) {
	if len(c.Args) == 0 {
		return "", &StartError{Code: 127, Err: errors.New("no command")}
	}
	name := c.Args[0]
	failed := &StartError{Program: name, Code: 127, Err: errors.New("command not found")}
	for _, candidate := range c.candidates(name) {
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

// executable says why a file cannot be executed, nil if it can.
func executable(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return errors.Unwrap(err) // without the path, which need not be what the user typed
	}
	if info.IsDir() {
		return syscall.EISDIR
	}
	return unix.Faccessat(unix.AT_FDCWD, path, unix.X_OK, unix.AT_EACCESS)
}

// environment is the command's environment, with only the last of duplicate variables:
// programs would otherwise find the first.
func (c Command) environment() []string {
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
