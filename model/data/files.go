package data

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"time"
)

// listFiles returns the regular files at any depth below the folder whose path is name,
// in lexical order. It leaves out files whose base names do not match glob, unless glob
// is "", and all files and folders whose names begin with a dot. If name is the path of a
// file, listFiles returns that file.
func listFiles(name, glob string) ([]string, error) {
	if _, err := path.Match(glob, ""); err != nil {
		return nil, fmt.Errorf("pattern %q: %w", glob, err)
	}
	root, info, err := resolved(name)
	if err != nil {
		return nil, err
	}
	if info.Mode().IsRegular() {
		return []string{root}, nil
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("%s: neither a file nor a folder", name)
	}
	files, err := filesBelow(root, glob)
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s: no file there%s", name, pattern(glob))
	}
	return files, nil
}

// resolved returns the path to which name leads through symbolic links, because WalkDir does
// not follow a root that is one.
func resolved(name string) (string, fs.FileInfo, error) {
	root, err := filepath.EvalSymlinks(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", nil, fmt.Errorf("%s: %w", name, err) // for a cycle of links, err itself names no file
	}
	if err != nil {
		return "", nil, err
	}
	info, err := os.Stat(root)
	return root, info, err
}

func filesBelow(root, glob string) (files []string, err error) {
	err = filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case file != root && strings.HasPrefix(d.Name(), "."):
			if d.IsDir() {
				return fs.SkipDir
			}
		case d.Type().IsRegular() && (glob == "" || matches(glob, d.Name())):
			files = append(files, file)
		}
		return nil
	})
	return files, err
}

func matches(glob, name string) bool {
	ok, err := path.Match(glob, name)
	return ok && err == nil
}

func pattern(glob string) string {
	if glob == "" {
		return ""
	}
	return fmt.Sprintf(" matches %q", glob)
}

// goTimeout limits `go env`, so that a toolchain that hangs does not hang the
// run. It is far longer than `go env` takes.
const goTimeout = 20 * time.Second

// GoSource returns the folder of Go's own source, as reported by the go command
// on the PATH.
func GoSource() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), goTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "env", "GOROOT")
	// Run it away from any go.mod, which could ask for another toolchain.
	cmd.Dir = os.TempDir()
	cmd.Env = append(os.Environ(), "GOTOOLCHAIN=local", "GOWORK=off")
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("find Go's source: go env GOROOT: %w; set data.path to a file or folder of your own text", err)
	}
	root := strings.TrimSpace(string(out))
	if root == "" {
		return "", errors.New("find Go's source: go env GOROOT is empty; set data.path to a file or folder of your own text")
	}
	return filepath.Join(root, "src"), nil
}
