package runs

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"headroom/recovery"
)

// operations are all the ways in which a live run writes to its folder.
var operations = map[string]func(*Folder) error{
	"an entry":        func(f *Folder) error { return f.Record(Entry{Kind: KindDecision, Text: "later"}) },
	"a step":          func(f *Folder) error { return f.AddProcessStep(ProcessStep{Made: 7}) },
	"metrics":         func(f *Folder) error { return errors.Join(f.AddStep(StepReport{Step: 1}), f.Flush(true)) },
	"fewer metrics":   func(f *Folder) error { return f.CutMetrics(0) },
	"a status":        func(f *Folder) error { return f.SetStatus(Status{State: StateRunning}) },
	"the end":         func(f *Folder) error { return f.SetStatus(Status{State: StateDone}) },
	"what it learned": func(f *Folder) error { return f.SetLearned(Learned{Pieces: 9}) },
	"what it knows":   func(f *Folder) error { return f.SetKnown(Known{Before: []Mark{{Path: "a"}, {Path: "b"}}}) },
	"its config":      func(f *Folder) error { return f.SetConfig([]byte("command: [train]\n")) },
	"a log":           func(f *Folder) error { file, err := f.AttemptLog(2); return errors.Join(err, file.Close()) },
	"output":          func(f *Folder) error { o, err := f.Output(2); return errors.Join(err, o.Close()) },
	"its lock":        func(f *Folder) error { return f.StillHeld() },
	"a checkpoint": func(f *Folder) error {
		_, _, err := f.SaveCheckpoint(Checkpoint{Step: 3}, func(w io.Writer) error { _, err := w.Write([]byte("state")); return err })
		return err
	},
}

// begun returns the folder of a live run, in a folder of its own, with everything that a continued
// run needs.
func begun(t *testing.T) *Folder {
	t.Helper()
	above := filepath.Join(t.TempDir(), "runs")
	if err := os.Mkdir(above, 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := Open(filepath.Join(above, "train"))
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(f.KeepSecrets([]string{"train", "--key", "a"}, []string{"train", "--key", Hidden}, nil), f.FirstConfig([]byte("command: [train]\n")), f.Record(Entry{Kind: KindRun, Text: "begun"}), f.SetLearned(Learned{Pieces: 5, Learned: recovery.Learned{Micro: 8}}), f.SetKnown(Known{Before: []Mark{{Path: "a"}}}))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// endsWhole closes a folder that begun has returned, and checks that what it had is still there and
// that its journal ends with the entry newest.
func endsWhole(t *testing.T, f *Folder) {
	t.Helper()
	dir := f.Dir()
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	config, err := os.ReadFile(filepath.Join(dir, "run.yaml"))
	if err != nil || string(config) != "command: [train]\n" {
		t.Errorf("run.yaml: %q, %v", config, err)
	}
	if words, err := Unmasked(dir, []string{"train", "--key", Hidden}); err != nil || words[2] != "a" {
		t.Errorf("the command's secrets: %q, %v", words, err)
	}
	again, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close() //nolint:errcheck // a test's
	journal, err := ReadJournal(dir)
	if err != nil || len(journal) < 2 || journal[0].Text != "begun" || journal[1].Text == "begun" || journal[len(journal)-1].Text != "newest" {
		t.Errorf("%+v, %v", journal, err)
	}
	if k, err := again.Known(); err != nil || k == nil || len(k.Before) < 1 {
		t.Errorf("%+v, %v", k, err)
	}
	if l, err := again.Learned(); err != nil || l == nil || l.Pieces < 5 {
		t.Errorf("%+v, %v", l, err)
	}
}

// TestRemovedFolderIsMadeAgain checks that each write to a folder that somebody has removed, with
// the folder above it, makes it again: locked, with the command, what was learned and when the run
// began; and that this is said once.
func TestRemovedFolderIsMadeAgain(t *testing.T) {
	removed := map[string]func(dir string) error{
		"all runs":     func(dir string) error { return os.RemoveAll(filepath.Dir(dir)) },
		"what it held": func(dir string) error { return errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o755)) },
	}
	for name, do := range operations {
		for what, remove := range removed {
			t.Run(name+", "+what, func(t *testing.T) {
				f := begun(t)
				dir := f.Dir()
				if err := remove(dir); err != nil {
					t.Fatal(err)
				}
				if err := do(f); err != nil {
					t.Fatal(err)
				}
				if err := f.Record(Entry{Kind: KindDecision, Text: "newest"}); err != nil {
					t.Error(err)
				}
				if said := f.TakeRemovals(); len(said) != 1 || !strings.Contains(said[0], "made again") {
					t.Errorf("%q", said)
				}
				if _, err := Open(dir); !errors.As(err, new(*LockedError)) {
					t.Errorf("the folder made again is not locked: %v", err)
				}
				endsWhole(t, f)
			})
		}
	}
}

// TestWriteDuringRemoval checks that a folder is whole in the end if the run writes to it while it is
// being removed: after any number of the files that it held then, before the others.
func TestWriteDuringRemoval(t *testing.T) {
	orders := map[string]func([]os.DirEntry){
		"lock first": func(held []os.DirEntry) {
			at := slices.IndexFunc(held, func(e os.DirEntry) bool { return e.Name() == "lock" })
			held[0], held[at] = held[at], held[0]
		},
		"by name":   func([]os.DirEntry) {},
		"backwards": slices.Reverse[[]os.DirEntry],
	}
	for name, do := range operations {
		for order, arrange := range orders {
			t.Run(name+", "+order, func(t *testing.T) {
				for removed := 0; ; removed++ {
					f := begun(t)
					held, err := os.ReadDir(f.Dir())
					if err != nil {
						t.Fatal(err)
					}
					if removed > len(held) {
						_ = f.Close()
						return
					}
					arrange(held)
					remove := func(some []os.DirEntry) {
						for _, e := range some {
							if err := os.RemoveAll(filepath.Join(f.Dir(), e.Name())); err != nil {
								t.Fatal(err)
							}
						}
					}
					remove(held[:removed])
					if err := do(f); err != nil {
						t.Fatalf("%v removed: %v", held[:removed], err)
					}
					remove(held[removed:])
					_ = os.Remove(f.Dir()) // fails if anything is in it again
					if err := f.Record(Entry{Kind: KindDecision, Text: "newest"}); err != nil {
						t.Errorf("%v removed: %v", held[:removed], err)
					}
					if endsWhole(t, f); t.Failed() {
						t.Fatalf("with %v removed before the write", held[:removed])
					}
				}
			})
		}
	}
}

// removingDisk removes a folder when a file in it is about to be created, the first times.
type removingDisk struct {
	OSDisk
	folder string
	times  int
}

func (d *removingDisk) Create(path string) (File, error) {
	if d.times > 0 {
		d.times--
		if err := os.RemoveAll(d.folder); err != nil {
			return nil, err
		}
	}
	return d.OSDisk.Create(path)
}

// TestFolderRemovedInAWrite checks that a write succeeds although the folder, and the one above it,
// are removed in the middle of it, more than once.
func TestFolderRemovedInAWrite(t *testing.T) {
	above := filepath.Join(t.TempDir(), "runs")
	if err := os.Mkdir(above, 0o755); err != nil {
		t.Fatal(err)
	}
	disk := &removingDisk{folder: above}
	f, err := OpenOn(filepath.Join(above, "train"), disk)
	if err != nil {
		t.Fatal(err)
	}
	disk.times = mostTries - 1
	if err := f.SetStatus(Status{State: StateRunning, Step: 5}); err != nil {
		t.Error(err)
	}
	if s, err := ReadStatus(f.Dir()); err != nil || s.Step != 5 || s.State != StateRunning {
		t.Errorf("%+v, %v", s, err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}

// TestFolderOfAnotherRunIsLeftAlone checks that nothing is written to a folder that another process
// has made, under the same name, since ours was removed.
func TestFolderOfAnotherRunIsLeftAlone(t *testing.T) {
	for name, do := range operations {
		if strings.Contains("a log, output", name) {
			continue // each attempt has its own
		}
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "train")
			f, err := Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(f.Record(Entry{Kind: KindRun, Text: "begun"}), os.RemoveAll(dir)); err != nil {
				t.Fatal(err)
			}
			other, err := Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			if err := other.Record(Entry{Kind: KindRun, Text: "another"}); err != nil {
				t.Fatal(err)
			}
			if err := do(f); !errors.As(err, new(*LockedError)) {
				t.Errorf("%v", err)
			}
			_ = f.Close() // what waits in memory belongs to no folder
			if err := other.Close(); err != nil {
				t.Error(err)
			}
			if journal, err := ReadJournal(dir); err != nil || len(journal) != 1 || journal[0].Text != "another" {
				t.Errorf("%+v, %v", journal, err)
			}
		})
	}
}

// fullDisk is a disk on which there is no room for a file more while full is true.
type fullDisk struct {
	OSDisk
	full bool
}

func (d *fullDisk) Create(path string) (File, error) {
	if d.full {
		return nil, syscall.ENOSPC
	}
	return d.OSDisk.Create(path)
}

// TestTheEndIsKnownOnAFullDisk checks that the state in which a run has ended is known although its
// status could not be written, even if no status was ever written, until the run goes on.
func TestTheEndIsKnownOnAFullDisk(t *testing.T) {
	for _, before := range []bool{true, false} {
		for _, state := range []State{StateDone, StateFailed, StateInterrupted} {
			dir, disk := filepath.Join(t.TempDir(), "train"), &fullDisk{}
			f, err := OpenOn(dir, disk)
			if err != nil {
				t.Fatal(err)
			}
			if before {
				if err := f.SetStatus(Status{State: StateRunning, Step: 5}); err != nil {
					t.Fatal(err)
				}
			}
			disk.full = true
			if err := f.SetStatus(Status{State: state}); !errors.Is(err, syscall.ENOSPC) || !f.EndRecorded() {
				t.Errorf("%v, recorded: %v", err, f.EndRecorded())
			}
			if err := f.Close(); err != nil {
				t.Error(err)
			}
			if s, err := ReadStatus(dir); err != nil || s.State != state || before && s.Step != 5 {
				t.Errorf("%v before: %+v, %v, want %s", before, s, err, state)
			}
			if f, err = Open(dir); err != nil {
				t.Fatal(err)
			}
			if err := f.Close(); err != nil {
				t.Error(err)
			}
			if s, err := ReadStatus(dir); before && (err != nil || s.State != StateStale) || !before && !errors.Is(err, os.ErrNotExist) {
				t.Errorf("after it was opened again: %+v, %v", s, err)
			}
		}
	}
}
