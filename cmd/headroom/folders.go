package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"headroom/cmd/headroom/ui"
	"headroom/configs"
	"headroom/spelling"
)

// runFolder returns the folder of the run that word names. word is the name of a run in
// [configs.RunsDir], or the path of a run's folder.
func runFolder(word string) (string, error) {
	for _, dir := range []string{filepath.Join(configs.RunsDir(), word), word} {
		if isRun(dir) {
			return dir, nil
		}
	}
	hint := `"headroom status" lists the runs here`
	if near := spelling.Nearest(word, runNames()); near != "" {
		hint = fmt.Sprintf("did you mean %q?", near)
	}
	return "", ui.Usagef(hint, "no run %q: it is neither the name of a run in %s nor the path of one", word, configs.RunsDir())
}

func isRun(dir string) bool {
	for _, name := range []string{"journal.jsonl", "run.yaml"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			return true
		}
	}
	return false
}

// runNames returns the names of the runs in [configs.RunsDir], sorted. It returns none
// if that folder cannot be read.
func runNames() []string {
	entries, _ := os.ReadDir(configs.RunsDir())
	var names []string
	for _, e := range entries {
		if e.IsDir() && isRun(filepath.Join(configs.RunsDir(), e.Name())) {
			names = append(names, e.Name())
		}
	}
	return slices.Clip(names)
}

// missing reports whether err means that a file or folder does not exist.
func missing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}
