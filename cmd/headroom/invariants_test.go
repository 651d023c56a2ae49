package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// guarded makes a folder for a run, with its own data, home and folder for
// temporary files, and returns the [belongings] in it.
func guarded(t *testing.T) (before []string) {
	t.Helper()
	inEmptyFolder(t, "mine.yaml", `# my settings, my comments
model: {kind: gpt, layers: 1, width: 16, heads: 1, context: 16}
data: {kind: text, path: book.txt}
batch: {effective: 16, micro: auto}
train: {steps: 100000, checkpoint_every: 50}
device: {kind: host, capacity: 1MiB}
`)
	if err := os.WriteFile("book.txt", []byte(strings.Repeat("It was a dark and stormy night. ", 200)), 0o444); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"tmp", "home"} {
		if err := os.Mkdir(name, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", filepath.Join(here, "tmp"))
	t.Setenv("HOME", filepath.Join(here, "home"))
	return belongings(t)
}

// belongings lists everything in the current folder except runs: folders by name, and
// files with the time of their last change, their mode and the hash of their content.
func belongings(t *testing.T) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if path == "runs" {
			return filepath.SkipDir
		}
		if err != nil || path == "." {
			return err
		}
		info, err := d.Info()
		if err == nil && !info.IsDir() { // a folder's time may change
			var content []byte
			if content, err = os.ReadFile(path); err == nil {
				all = append(all, fmt.Sprintf("%s %v %v %x", path, info.ModTime(), info.Mode(), sha256.Sum256(content)))
			}
		}
		if err == nil && info.IsDir() {
			all = append(all, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestUsersFilesStayAsTheyAre checks invariants 8 and 9 of ARCHITECTURE.md. The user's
// files are not touched. When a command has ended, in whatever way, nothing of it is
// left except its folder: no process and no temporary file.
func TestUsersFilesStayAsTheyAre(t *testing.T) {
	before := guarded(t)
	for _, end := range []struct {
		name   string
		args   []string
		signal syscall.Signal
		want   int
	}{
		{"done", []string{"run", "mine.yaml", "--set", "train.steps=60", "--fresh"}, 0, 0},
		{"interrupted", []string{"run", "mine.yaml", "--fresh"}, syscall.SIGINT, 75},
		{"killed", []string{"run", "mine.yaml", "--fresh"}, syscall.SIGKILL, -1},
		{"gave up", []string{"run", "mine.yaml", "--fresh", "--set", "device.capacity=10KiB"}, 0, 120},
		{"refused", []string{"run", "mine.yaml", "--set", "batch.effectve=3"}, 0, 2},
		{"found", []string{"find", "mine.yaml"}, 0, 0},
	} {
		command := exec.Command("headroom", append(end.args, "--json")...)
		command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		p := begin(t, command)
		if end.signal != 0 {
			p.until("a step", stepAfter(0))
			p.signal(end.signal)
		}
		if got := p.end(); got != end.want {
			t.Errorf("%s: exit status %d, want %d\n%s", end.name, got, end.want, p.stderr.String())
		}
		if err := syscall.Kill(-command.Process.Pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("%s: a process is left: %v", end.name, err)
		}
		if after := belongings(t); !slices.Equal(after, before) {
			t.Errorf("%s:\n%s\nwas\n%s", end.name, strings.Join(after, "\n"), strings.Join(before, "\n"))
		}
	}
}
