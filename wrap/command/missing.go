package command

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// Missing says what of a command does not exist: its program, or the Python script that it runs. It
// returns "" if both exist, or if it cannot be seen from here whether they do.
func (c Line) Missing() string {
	if err := c.Startable(); err != nil {
		return err.Error()
	}
	launch, err := Peel(c)
	if err != nil || launch.Script == "" || launch.elsewhere() {
		return ""
	}
	if _, err := os.Stat(c.From(launch.Script)); !errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	return launch.Script + " does not exist"
}

// elsewhere reports whether a wrapper starts the training program in another folder, or may
// start it on another machine.
func (l Launch) elsewhere() bool {
	return l.moved() || slices.ContainsFunc(l.Layers, func(name string) bool { return name == "srun" || strings.HasPrefix(name, "mpi") })
}

// moved reports whether a wrapper starts the training program in another folder.
func (l Launch) moved() bool {
	return slices.ContainsFunc(l.Options, func(o Option) bool {
		return o.Layer == "env" && (o.Name == "C" || o.Name == "chdir") || o.Layer == "uv run" && o.Name == "directory" || o.Layer == "conda run" && o.Name == "cwd"
	})
}

// unopened matches what Python prints if it cannot open what it is to run. Its long repetitions
// take 1 ms to compile, and only a command that has failed needs it.
var unopened = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?m)^\S*python[\w.]*: (?:can't open file '?([^'\n]{1,1000}?)'?: \[Errno \d+\]|(?:Error while finding module specification for|No module named) '?([\w.]{1,512}))`)
})

// Unopened returns the script or module that Python could not open, according to output, if it
// is what the command was to run. Then nothing of the training has run. It returns "" otherwise:
// a training may itself start another Python that fails like this.
func (c Line) Unopened(output []byte) string {
	launch, err := Peel(c)
	if err != nil {
		return ""
	}
	for _, found := range unopened().FindAllSubmatch(output, -1) {
		if launch.Script != "" && path.Base(string(found[1])) == path.Base(launch.Script) {
			return launch.Script
		}
		if launch.Module != "" && string(found[2]) == launch.Module {
			return launch.Module
		}
	}
	return ""
}
