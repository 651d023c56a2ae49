package runs

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

func mustOpen(t *testing.T, dir string) *Folder {
	t.Helper()
	f, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func mustWrite(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// readOnly is a disk on which no folder can be created.
type readOnly struct{ OSDisk }

func (readOnly) Mkdir(string) error { return fs.ErrPermission }

// written is a disk that records the names of the files and folders that are synced. If
// broken is true, folders cannot be synced.
type written struct {
	OSDisk
	synced []string
	broken bool
}

func (d *written) SyncDir(path string) error {
	if d.broken {
		return syscall.EIO
	}
	d.synced = append(d.synced, filepath.Base(path))
	return d.OSDisk.SyncDir(path)
}

func (d *written) Append(path string) (File, error) {
	f, err := d.OSDisk.Append(path)
	return writtenFile{f, d, path}, err
}

type writtenFile struct {
	File
	disk *written
	path string
}

func (f writtenFile) Sync() error {
	f.disk.synced = append(f.disk.synced, filepath.Base(f.path))
	return f.File.Sync()
}

// TestDurableOnceItCounts checks that the start of a run does not wait for the disk,
// and that recording a failure, saving a checkpoint and ending the run make durable
// everything that they rely on.
func TestDurableOnceItCounts(t *testing.T) {
	for name, counts := range map[string]func(*Folder) error{
		"failure": func(f *Folder) error { return f.Record(Entry{Kind: KindOOM}) },
		"flush":   func(f *Folder) error { return f.Flush(false) },
		"checkpoint": func(f *Folder) error {
			_, _, err := f.SaveCheckpoint(Checkpoint{Step: 1}, func(io.Writer) error { return nil })
			return err
		},
		"end":   func(f *Folder) error { return f.SetStatus(Status{State: StateDone}) },
		"close": (*Folder).Close,
	} {
		d := &written{}
		dir := filepath.Join(t.TempDir(), "run")
		f, err := OpenOn(dir, d)
		if err != nil {
			t.Fatal(err)
		}
		for _, err := range []error{f.FirstConfig([]byte("command: []\n")), f.Record(Entry{Kind: KindAttempt, Attempt: 1}), f.SetStatus(Status{State: StateRunning})} {
			if err != nil {
				t.Error(err)
			}
		}
		if len(d.synced) > 0 {
			t.Errorf("%s: the start waited for %q", name, d.synced)
		}
		if all, err := ReadJournal(dir); len(all) != 1 || err != nil {
			t.Errorf("%s: a kill would lose the journal: %v, %v", name, all, err)
		}
		d.broken = true
		if err := counts(f); !errors.Is(err, syscall.EIO) {
			t.Errorf("%s on a broken disk: %v", name, err)
		}
		if d.broken = false; name == "close" {
			continue
		}
		if err := counts(f); err != nil || !slices.Contains(d.synced, "run.yaml") || !slices.Contains(d.synced, "run") {
			t.Errorf("%s, once it is mended: %v, synced %q", name, err, d.synced)
		}
		if err := f.Close(); err != nil || !slices.Contains(d.synced, "journal.jsonl") {
			t.Errorf("%s: %v, synced %q", name, err, d.synced)
		}
	}
}

func TestOpenReadOnly(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	if _, err := OpenOn(dir, readOnly{}); !errors.Is(err, fs.ErrPermission) || !strings.HasPrefix(err.Error(), "open run folder "+dir) {
		t.Error(err)
	}
	if os.Getuid() == 0 {
		t.Skip("root writes everywhere; the rest needs another user")
	}
	if err := os.Mkdir(dir, 0o555); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "cannot write to it") {
		t.Error(err)
	}
}

func TestFolderIsLocked(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	f := mustOpen(t, dir)
	for _, try := range []func() error{
		func() error { _, err := Open(dir); return err },
		func() error { _, err := SetAside(dir); return err },
	} {
		err := try()
		var locked *LockedError
		if !errors.As(err, &locked) || locked.PID != os.Getpid() || locked.Dir != dir || locked.Started.IsZero() || !strings.Contains(err.Error(), "in use by process") {
			t.Errorf("%v", err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := mustOpen(t, dir).Close(); err != nil {
		t.Error(err)
	}
}

func TestSetAside(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	if to, err := SetAside(dir); to != "" || err != nil {
		t.Errorf("nothing to set aside: %q, %v", to, err)
	}
	for _, want := range []string{dir + ".1", dir + ".2"} {
		f := mustOpen(t, dir)
		if err := errors.Join(f.SetConfig([]byte(want)), f.Close()); err != nil {
			t.Fatal(err)
		}
		if to, err := SetAside(dir + "/"); to != want || err != nil {
			t.Errorf("%q, %v; want %q", to, err, want)
		}
		if text, err := os.ReadFile(filepath.Join(want, "run.yaml")); err != nil || string(text) != want {
			t.Errorf("%q, %v", text, err)
		}
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Error("the folder is still there")
	}
}

func TestConfig(t *testing.T) {
	f := mustOpen(t, filepath.Join(t.TempDir(), "run"))
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := f.Config(); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	for _, want := range []string{"a: 1\n", "b: 2\n"} {
		if err := f.SetConfig([]byte(want)); err != nil {
			t.Fatal(err)
		}
		if got, err := f.Config(); err != nil || string(got) != want {
			t.Errorf("%q, %v", got, err)
		}
	}
}

// TestTornLines cuts the journal and the metrics at every byte. A reader must see every
// whole line before the cut, and the next run must continue after the last of them.
func TestTornLines(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	for _, name := range []string{"journal.jsonl", "metrics.jsonl"} {
		f, err := OpenOn(dir, OSDisk{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			e := Entry{Kind: KindDecision, Attempt: i + 1, Text: "a \"b\"\n\u2192 c"}
			if err := errors.Join(f.Record(e), f.AddStep(StepReport{Step: i + 1, Splits: []int{3, 2}})); err != nil {
				t.Fatal(err)
			}
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		whole, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		for cut := range len(whole) + 1 {
			checkTorn(t, dir, name, whole[:cut])
		}
		remove(t, dir)
	}
}

func checkTorn(t *testing.T, dir, name string, text []byte) {
	t.Helper()
	mustWrite(t, filepath.Join(dir, name), string(text))
	torn := len(text) > 0 && text[len(text)-1] != '\n'
	want := bytes.Count(text, []byte("\n"))
	checkLines(t, dir, name, want, torn)
	if len(text)%17 > 1 && torn {
		return // opening is slow and does not depend on where in a line the cut is
	}
	f, err := OpenOn(dir, OSDisk{})
	if err != nil {
		t.Fatal(err)
	}
	if repaired := len(f.TakeRepairs()) > 0; repaired != torn {
		t.Fatalf("%s cut at %d: repaired %v", name, len(text), repaired)
	}
	if err := errors.Join(f.Record(Entry{Kind: KindRun}), f.AddStep(StepReport{Step: 9}), f.Close()); err != nil {
		t.Fatal(err)
	}
	checkLines(t, dir, name, want+1, false)
}

func checkLines(t *testing.T, dir, name string, want int, torn bool) {
	t.Helper()
	var n int
	var err error
	if name == "metrics.jsonl" {
		all, readErr := ReadMetrics(dir)
		n, err = len(all), readErr
	} else {
		all, readErr := ReadJournal(dir)
		n, err = len(all), readErr
	}
	var told *TornError
	if n != want || errors.As(err, &told) != torn || !torn && err != nil {
		t.Fatalf("%s: %d lines, want %d: %v", name, n, want, err)
	}
	if torn && (told.File != name || !slices.Equal(told.Lines, []int{want + 1})) {
		t.Fatalf("%s: told %+v", name, told)
	}
}

// TestStepsOfACommandStay checks that a recorded step of a command can be read at once,
// and that an attempt that begins at step 0 does not remove the steps of earlier
// attempts.
func TestStepsOfACommandStay(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	f := mustOpen(t, dir)
	want := ProcessStep{Attempt: 1, PID: 7, Made: 31, Rows: 40, Pieces: 2, Seconds: 0.5}
	if err := errors.Join(f.AddProcessStep(want), f.CutMetrics(0)); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadProcessSteps(dir); err != nil || !slices.Equal(got, []ProcessStep{want}) {
		t.Errorf("%+v, %v", got, err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestDamagedLine checks that damage further up in a file costs only the damaged lines,
// and that opening the folder does not remove them.
func TestDamagedLine(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	if err := mustOpen(t, dir).Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "metrics.jsonl")
	mustWrite(t, path, "{\"step\":1}\n\x00\x00\x00\n{\"step\":3}\nnot json\n")
	steps, err := ReadMetrics(dir)
	var torn *TornError
	if !errors.As(err, &torn) || !slices.Equal(torn.Lines, []int{2, 4}) || len(steps) != 2 || steps[1].Step != 3 {
		t.Errorf("%+v, %v", steps, err)
	}
	f := mustOpen(t, dir)
	if err := errors.Join(f.CutMetrics(2), f.Close()); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "{\"step\":1}\n\x00\x00\x00\n" {
		t.Errorf("%q, %v", text, err)
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
}

// TestReadErrorsThatAreDamage checks that an error which the user can fix does not
// count as damage: falling back to an older checkpoint would lose work.
func TestReadErrorsThatAreDamage(t *testing.T) {
	for cause, want := range map[error]bool{fs.ErrNotExist: true, syscall.EIO: true, fs.ErrPermission: false, syscall.EMFILE: false} {
		found := (*damageError)(nil)
		if got := errors.As(readError("meta.json", &fs.PathError{Op: "open", Path: "meta.json", Err: cause}), &found); got != want {
			t.Errorf("%v: damage %v, want %v", cause, got, want)
		}
	}
}

// fullFile is a file on a full disk.
type fullFile struct{ File }

func (fullFile) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

func TestPendingLinesAreBounded(t *testing.T) {
	l, _, err := openLines(OSDisk{}, filepath.Join(t.TempDir(), "lines"))
	if err != nil {
		t.Fatal(err)
	}
	file := l.file
	l.limit, l.file = 100, fullFile{file}
	for i := range 1000 {
		if err := l.add(i + 1000); err != nil {
			t.Fatal(err)
		}
		if err := l.flush(true); !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
	}
	l.file = file
	if err := l.close(); err != nil {
		t.Fatal(err)
	}
	kept, err := readLines[int](l.path)
	if err != nil || len(kept) != 20 || kept[0] != 1980 || kept[19] != 1999 || l.lost != 980 {
		t.Errorf("kept %v, lost %d: %v", kept, l.lost, err)
	}
}

// crowded is a disk with room for the states of only a certain number of checkpoints,
// given by most.
type crowded struct {
	OSDisk
	most int
}

func (d crowded) Create(path string) (File, error) {
	held, err := filepath.Glob(filepath.Join(filepath.Dir(filepath.Dir(path)), "step-*"))
	if err != nil {
		return nil, err
	}
	f, err := d.OSDisk.Create(path)
	if filepath.Base(path) == "state.safetensors" && len(held) >= d.most {
		return fullFile{f}, err
	}
	return f, err
}

// TestFullDiskReleasesTheOldest checks that old checkpoints are removed to make room
// for new ones, but never the newest one that is whole.
func TestFullDiskReleasesTheOldest(t *testing.T) {
	state := func(w io.Writer) error { _, err := io.WriteString(w, "state"); return err }
	dir := filepath.Join(t.TempDir(), "run")
	f, err := OpenOn(dir, crowded{most: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var released []int
	for step := range 5 {
		_, gone, err := f.SaveCheckpoint(Checkpoint{Step: step}, state)
		if err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
		released = append(released, gone...)
	}
	if want := []int{0, 1, 2}; !slices.Equal(released, want) {
		t.Errorf("released %v, want %v", released, want)
	}
	// The newest checkpoint is damaged, so the older one is the only whole one.
	mustWrite(t, filepath.Join(dir, "checkpoints", CheckpointName(4), "state.safetensors"), "x")
	if _, gone, err := f.SaveCheckpoint(Checkpoint{Step: 5}, state); !errors.Is(err, syscall.ENOSPC) || len(gone) > 0 {
		t.Errorf("beside a damaged one: released %v, %v", gone, err)
	}
	if _, err := f.verify(3); err != nil {
		t.Error(err)
	}
	// A single checkpoint is never removed to make room.
	f.disk = crowded{most: 1}
	remove(t, filepath.Join(dir, "checkpoints", CheckpointName(4)))
	if steps, err := f.checkpointSteps(); err != nil || !slices.Equal(steps, []int{3}) {
		t.Fatalf("checkpoints %v, %v", steps, err)
	}
	if _, gone, err := f.SaveCheckpoint(Checkpoint{Step: 6}, state); !errors.Is(err, syscall.ENOSPC) || len(gone) > 0 {
		t.Errorf("the only one: released %v, %v", gone, err)
	}
}

// TestForeignJournal checks that a journal can still be read if it has damaged numbers,
// or words that only earlier versions of headroom wrote.
func TestForeignJournal(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	if err := mustOpen(t, dir).Close(); err != nil {
		t.Fatal(err)
	}
	mustWrite(t, filepath.Join(dir, "journal.jsonl"), `{"attempt":3,"kind":"attempt","text":"","step":0}
{"attempt":9223372036854775807,"kind":"attempt","text":"","step":0}
{"attempt":3,"kind":"oom","text":"out of memory","step":4}
{"attempt":3,"kind":"oom","text":"out of memory","step":4,"repeated":true}
{"attempt":3,"kind":"survived","text":"out of memory","step":0}
{"attempt":3,"kind":"survived","text":"out of memory","step":0,"repeated":true}
{"attempt":3,"kind":"lost","text":"gone","step":4}
`)
	mustWrite(t, filepath.Join(dir, "status.json"), `{"state":"failed","losses":2}`)
	f := mustOpen(t, dir)
	if tally := f.Tally(); tally.Attempts != 3 || tally.Failures != 2 || tally.Gone != 1 || tally.GoneSince != 1 || tally.Newest != KindGone {
		t.Errorf("%+v", tally)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if s, err := ReadStatus(dir); err != nil || s.DeviceGone != 2 {
		t.Errorf("%+v, %v", s, err)
	}
}
