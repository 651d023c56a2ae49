package worker

import (
	"debug/elf"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestEverythingIsEmbedded compares the embedded files with those in the folder. A
// process would notice a missing file only when it needs that file.
func TestEverythingIsEmbedded(t *testing.T) {
	list := func(f fs.FS, dir string) (names []string) {
		err := fs.WalkDir(f, dir, func(name string, d fs.DirEntry, err error) error {
			if err == nil && strings.HasSuffix(name, ".py") && !strings.Contains(name, "/build/") && !strings.Contains(name, "/tests/") && name != "python/hatch_build.py" {
				names = append(names, name)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return names
	}
	have, want := list(files, "python"), list(os.DirFS("."), "python")
	if !slices.Equal(have, want) {
		t.Errorf("embedded %q\nthere    %q", have, want)
	}
	for _, name := range []string{"python/headroom_train/__init__.py", "python/headroom_train/_torch.py", "python/inject/sitecustomize.py"} {
		if !slices.Contains(have, name) {
			t.Errorf("%s is missing", name)
		}
	}
}

// TestAllocatorIsSelfContained checks that the library for memory of the host is unpacked, for both
// architectures, that it exports what pool.py calls and nothing else, and that it needs two functions of the C
// library, which is always there, and no library by name: it may not be there, or not in the version that
// PyTorch has loaded. Its segments are aligned to the largest pages that machines of the architecture have.
func TestAllocatorIsSelfContained(t *testing.T) {
	l := begun(t, &books{}, Armed)
	defer ended(t, l)
	for name, want := range map[string]struct {
		machine elf.Machine
		pages   uint64
	}{"area-x86_64.so": {elf.EM_X86_64, 4 << 10}, "area-aarch64.so": {elf.EM_AARCH64, 64 << 10}} {
		library, err := elf.Open(filepath.Join(l.folder.inject(), "headroom_train", "spill", name))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = library.Close() }() // nothing was written
		if library.Machine != want.machine || library.Type != elf.ET_DYN {
			t.Errorf("%s: %v, %v", name, library.Machine, library.Type)
		}
		for _, p := range library.Progs {
			if p.Type == elf.PT_LOAD && p.Align != want.pages {
				t.Errorf("%s: a segment is aligned to %d bytes", name, p.Align)
			}
		}
		needed, err := library.ImportedLibraries()
		if err != nil || len(needed) > 0 {
			t.Errorf("%s needs %q, %v", name, needed, err)
		}
		symbols, err := library.DynamicSymbols()
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, s := range symbols {
			names = append(names, s.Name)
		}
		slices.Sort(names)
		if want := []string{"dl_iterate_phdr", "headroom_alloc", "headroom_area", "headroom_free", "headroom_refused", "headroom_reserve", "mprotect"}; !slices.Equal(names, want) {
			t.Errorf("%s has the symbols %q, want %q", name, names, want)
		}
	}
}

// TestFolderIsPrivate checks that no other user can read the package or reach the
// socket, and that an attempt leaves nothing behind.
func TestFolderIsPrivate(t *testing.T) {
	l := begun(t, &books{}, Armed)
	modes := map[string]fs.FileMode{"": 0o700, "wire": 0o600, "package": 0o700, "package/sitecustomize.py": 0o600, "package/headroom_train/wire": 0o700, "package/headroom_train/wire/wire.py": 0o600}
	for name, want := range modes {
		info, err := os.Stat(filepath.Join(l.folder.dir, name))
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%q: %v, %v; want %v", name, info, err, want)
		}
	}
	text, err := os.ReadFile(filepath.Join(l.folder.inject(), "headroom_train", "_version.py"))
	if err != nil || !strings.Contains(string(text), `__version__ = "1.2.3"`) {
		t.Errorf("the version is %q, %v", text, err)
	}
	if len(l.Socket()) > socketMost {
		t.Errorf("%s is too long", l.Socket())
	}
	ended(t, l)
}

// TestFoldersOfTheDeadAreRemoved checks that the next attempt removes what a killed
// process left behind, and nothing else.
func TestFoldersOfTheDeadAreRemoved(t *testing.T) {
	temp := t.TempDir()
	made := func() *folder {
		f, err := makeFolder(temp, "")
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	dead, alive, young := made(), made(), made()
	for _, f := range []*folder{dead, young} {
		if err := f.lock.Close(); err != nil { // as a kill does
			t.Fatal(err)
		}
	}
	before := time.Now().Add(-time.Hour)
	for _, f := range []*folder{dead, alive} {
		if err := os.Chtimes(filepath.Join(f.dir, "lock"), before, before); err != nil {
			t.Fatal(err)
		}
	}
	other := filepath.Join(temp, folderName+"file")
	if err := os.WriteFile(other, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := Begin(Options{Journal: &books{}, temp: temp})
	if err != nil {
		t.Fatal(err)
	}
	ended(t, l)
	for path, want := range map[string]bool{dead.dir: false, alive.dir: true, young.dir: true, other: true} {
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) == want {
			t.Errorf("%s is there: %v, want %v", path, !want, want)
		}
	}
}

// TestLongFolderForTemporaryFiles checks that the socket is created in /tmp if its path in the
// folder for temporary files would be too long.
func TestLongFolderForTemporaryFiles(t *testing.T) {
	long := filepath.Join(t.TempDir(), strings.Repeat("x", 100))
	if err := os.Mkdir(long, 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := Begin(Options{Journal: &books{}, temp: long})
	if err != nil {
		t.Fatal(err)
	}
	c := dial(t, l)
	_ = c.conn.Close()
	if !strings.HasPrefix(l.Socket(), "/tmp/") {
		t.Errorf("the socket is %s", l.Socket())
	}
	ended(t, l)
}
