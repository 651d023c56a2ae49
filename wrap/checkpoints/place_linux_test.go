package checkpoints

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"headroom/wrap/command"
	"headroom/wrap/rewrite"
)

// keepsAt recognises a script that keeps its checkpoints at the pattern, seen from dir.
func keepsAt(t *testing.T, dir, pattern string) *rewrite.Match {
	t.Helper()
	return scriptMatch(t, os.DirFS("/"), dir, pattern)
}

// TestClaim checks that one run at a time can claim a place for its checkpoints, by whatever
// name it reaches the place, and that the run which came first hears of the other.
func TestClaim(t *testing.T) {
	for _, c := range []struct {
		name          string
		first, second string // patterns, in the folder that make has filled
		make          func(dir string) error
		meet          bool
	}{
		{"the same", "out/*.json", "out/*.json", nil, true},
		{"other folders", "out/*.json", "other/*.json", nil, false},
		{"another glob", "out/*.json", "out/B-*.json", nil, true},
		{"globs that never match the same", "out/A-*.json", "out/B-*.json", nil, false},
		{"a glob for folders", "out/*.json", "*/B-*.json", nil, true},
		{"files in the other's checkpoints", "out/step-*", "out/step-*/model.json", nil, true},
		{"by way of another folder", "out/*.json", "x/../out/*.json", nil, true},
		{"a link to the folder", "out/*.json", "link/*.json", func(dir string) error { return os.Symlink("out", filepath.Join(dir, "link")) }, true},
		{"a link to a folder that is not there yet", "new/*.json", "link/*.json", func(dir string) error { return os.Symlink("new", filepath.Join(dir, "link")) }, true},
		{"a link to a folder above", "out/deep/*.json", "link/deep/*.json", func(dir string) error { return os.Symlink("out", filepath.Join(dir, "link")) }, true},
		{"a folder that is not there yet", "new/*.json", "new/*.json", nil, true},
		{"a link to the file", "out/last.pt", "other/last.pt", func(dir string) error {
			return errors.Join(os.WriteFile(filepath.Join(dir, "out/last.pt"), nil, 0o600), os.Symlink("../out/last.pt", filepath.Join(dir, "other/last.pt")))
		}, true},
		{"a link to one of the other's files", "out/*.pt", "other/last.pt", func(dir string) error {
			return errors.Join(os.WriteFile(filepath.Join(dir, "out/last.pt"), nil, 0o600), os.Symlink("../out/last.pt", filepath.Join(dir, "other/last.pt")))
		}, true},
		{"a hard link of the file", "out/last.pt", "other/last.pt", func(dir string) error {
			return errors.Join(os.WriteFile(filepath.Join(dir, "out/last.pt"), nil, 0o600), os.Link(filepath.Join(dir, "out/last.pt"), filepath.Join(dir, "other/last.pt")))
		}, true},
		{"a hard link of one of the other's files", "out/*.pt", "other/last.pt", func(dir string) error {
			return errors.Join(os.WriteFile(filepath.Join(dir, "out/last.pt"), nil, 0o600), os.Link(filepath.Join(dir, "out/last.pt"), filepath.Join(dir, "other/last.pt")))
		}, true},
		{"other files of the same name", "out/last.pt", "other/last.pt", func(dir string) error {
			return errors.Join(os.WriteFile(filepath.Join(dir, "out/last.pt"), nil, 0o600), os.WriteFile(filepath.Join(dir, "other/last.pt"), nil, 0o600))
		}, false},
	} {
		for _, turned := range []bool{false, true} {
			dir := t.TempDir()
			for _, made := range []string{"out", "other", "x"} {
				if err := os.Mkdir(filepath.Join(dir, made), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			if c.make != nil {
				if err := c.make(dir); err != nil {
					t.Fatal(err)
				}
			}
			one, two := c.first, c.second
			if turned {
				one, two = two, one
			}
			var heard []string
			first, err := Announce(keepsAt(t, dir, one), "runs/one", func(who string) { heard = append(heard, who) })
			if err != nil || first == nil {
				t.Fatal(c.name, first, err)
			}
			second, err := Announce(keepsAt(t, dir, two), "runs/two", nil)
			if taken := (*KeptElsewhereError)(nil); errors.As(err, &taken) != c.meet || second == nil || c.meet && !strings.HasPrefix(err.Error(), "another headroom run (runs/one, process ") {
				t.Errorf("%s (%v): %v", c.name, turned, err)
			}
			if err := errors.Join(first.Close(), second.Close()); err != nil {
				t.Error(err)
			}
			if (len(heard) == 1 && strings.HasPrefix(heard[0], "another headroom run (runs/two, process ")) != c.meet {
				t.Errorf("%s (%v): the first has heard %q", c.name, turned, heard)
			}
			again, err := Announce(keepsAt(t, dir, one), "runs/one", nil)
			if err := errors.Join(err, again.Close()); err != nil {
				t.Errorf("%s: it is free again: %v", c.name, err)
			}
		}
	}
}

// TestClaimOfAFolderThatIsMadeMeanwhile checks that a place is the same before and after the
// command makes its folder.
func TestClaimOfAFolderThatIsMadeMeanwhile(t *testing.T) {
	dir := t.TempDir()
	first, err := Announce(keepsAt(t, dir, "a/new/*.json"), "runs/one", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = first.Close() }()
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, "a/new"), 0o755), os.Symlink("a/new", filepath.Join(dir, "link"))); err != nil {
		t.Fatal(err)
	}
	second, err := Announce(keepsAt(t, dir, "link/*.json"), "runs/two", nil)
	if !errors.As(err, new(*KeptElsewhereError)) {
		t.Error(err)
	}
	_ = second.Close()
}

// TestPlace checks where the checkpoints' folder is taken to be.
func TestPlace(t *testing.T) {
	dir := command.Resolved(t.TempDir())
	for _, c := range []struct{ glob, want string }{
		{"out/c.json", "out"}, {"out/step-*.json", "out"}, {"out/*/model.pt", "out"}, {"step-*.pt", ""}, {"a/b/c-?", "a/b"},
	} {
		m, err := rewrite.Recognise(command.Line{Args: []string{"train", "--bs", "4", "--acc", "1"}, Dir: dir}, nil, rewrite.Given{Files: os.DirFS("/"), World: 1,
			Knobs: []string{"micro=--bs", "accumulation=--acc", "resume=--resume", "checkpoints=" + c.glob}})
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.TrimPrefix(strings.TrimPrefix(Place(m), dir), "/"); got != c.want {
			t.Errorf("%s: %q, want %q", c.glob, got, c.want)
		}
	}
}
