package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"headroom/runs"
)

// fast is a disk that never syncs, so that tests can run thousands of saves. A process that
// is killed leaves the same files behind as it would with syncs.
type fast struct{ runs.OSDisk }

func (fast) SyncDir(string) error { return nil }

func (d fast) Create(path string) (runs.File, error) { return d.file(d.OSDisk.Create(path)) }
func (d fast) Append(path string) (runs.File, error) { return d.file(d.OSDisk.Append(path)) }

func (fast) file(f runs.File, err error) (runs.File, error) {
	if err != nil {
		return nil, err
	}
	return fastFile{f}, nil
}

type fastFile struct{ runs.File }

func (fastFile) Sync() error { return nil }

// faulty is a disk on which chosen operations fail. A write that fails has written half of
// its data.
type faulty struct {
	runs.Disk
	ops  []string
	fail func(n int, op string) error // returns the error of operation n, counted from 0; nil lets it succeed
}

func (d *faulty) op(verb, path string) error {
	op := verb + " " + filepath.Base(path)
	d.ops = append(d.ops, op)
	if d.fail == nil {
		return nil
	}
	return d.fail(len(d.ops)-1, op)
}

func (d *faulty) Mkdir(path string) error {
	if err := d.op("mkdir", path); err != nil {
		return err
	}
	return d.Disk.Mkdir(path)
}

func (d *faulty) Create(path string) (runs.File, error) { return d.file("create", path, d.Disk.Create) }
func (d *faulty) Append(path string) (runs.File, error) { return d.file("append", path, d.Disk.Append) }

func (d *faulty) file(verb, path string, open func(string) (runs.File, error)) (runs.File, error) {
	if err := d.op(verb, path); err != nil {
		return nil, err
	}
	f, err := open(path)
	return &faultyFile{f, d, path}, err
}

func (d *faulty) Truncate(path string, n int64) error {
	if err := d.op("truncate", path); err != nil {
		return err
	}
	return d.Disk.Truncate(path, n)
}

func (d *faulty) Rename(from, to string) error {
	if err := d.op("rename", to); err != nil {
		return err
	}
	return d.Disk.Rename(from, to)
}

func (d *faulty) Remove(path string) error {
	if err := d.op("remove", path); err != nil {
		return err
	}
	return d.Disk.Remove(path)
}

func (d *faulty) SyncDir(path string) error {
	if err := d.op("syncdir", path); err != nil {
		return err
	}
	return d.Disk.SyncDir(path)
}

type faultyFile struct {
	runs.File
	disk *faulty
	path string
}

func (f *faultyFile) Write(p []byte) (int, error) {
	if err := f.disk.op("write", f.path); err != nil {
		n, _ := f.File.Write(p[:len(p)/2])
		return n, err
	}
	return f.File.Write(p)
}

func (f *faultyFile) Sync() error {
	if err := f.disk.op("sync", f.path); err != nil {
		return err
	}
	return f.File.Sync()
}

// Close closes the file even if it reports an error, so that a test does not run out of
// file descriptors.
func (f *faultyFile) Close() error {
	return errors.Join(f.disk.op("close", f.path), f.File.Close())
}

// saving returns a journey in which everything that a run can write is written. It has
// several checkpoints, and an out-of-memory failure that is retried.
func saving(t testing.TB) *journey {
	j := newJourney(t, plan64.WithMicro(16), 6)
	j.options.CheckpointEvery = 2
	j.lab.allocFails = func(n int) bool { return n == 11 }
	return j
}

// TestCrashAtEveryOperation makes a process die at each operation on the disk in turn.
// The next process must find a folder in which it can finish the run, and the whole run
// must be accounted for.
func TestCrashAtEveryOperation(t *testing.T) {
	reference := saving(t)
	clean := &faulty{Disk: fast{}}
	if _, err := reference.runOn(context.Background(), clean); err != nil {
		t.Fatal(err)
	}
	stride := 1
	if testing.Short() {
		stride = 7
	}
	for n := 0; n < len(clean.ops); n += stride {
		j := saving(t)
		gone := errors.New("the process is gone")
		crashing := &faulty{Disk: fast{}, fail: func(i int, _ string) error {
			if i >= n {
				return gone
			}
			return nil
		}}
		if _, err := j.runOn(context.Background(), crashing); err == nil && n < slices.Index(clean.ops, "rename step-000006") {
			t.Fatalf("crash at operation %d (%s): the run says it is done", n, clean.ops[n])
		}
		newest := newestOnDisk(t, j.dir)
		j.lab.allocFails = nil
		result, err := j.run(context.Background())
		if err != nil || result.Resumed < newest || !result.Finished {
			t.Fatalf("crash at operation %d (%s): resumed %+v: %v", n, clean.ops[n], result, err)
		}
		if newest > 0 && result.Resumed != newest {
			t.Fatalf("crash at operation %d (%s): went on from step %d of %d", n, clean.ops[n], result.Resumed, newest)
		}
		j.account(6)
		same(t, reference.dir, j.dir, 6)
		leftovers(t, j.dir)
	}
}

// newestOnDisk returns the step of the newest checkpoint with a final name, or 0 if there
// is none.
func newestOnDisk(t *testing.T, dir string) int {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "checkpoints", "step-*"))
	if err != nil || len(found) == 0 {
		return 0
	}
	step := 0
	if _, err := fmt.Sscanf(filepath.Base(slices.Max(found)), "step-%d", &step); err != nil {
		t.Fatal(err)
	}
	return step
}

func leftovers(t *testing.T, dir string) {
	t.Helper()
	for _, pattern := range []string{".*", "checkpoints/.*", "checkpoints/damaged-*"} {
		if found, _ := filepath.Glob(filepath.Join(dir, pattern)); len(found) > 0 {
			t.Fatalf("left over: %v", found)
		}
	}
}

// TestEveryOperationFailsOnce fails each operation on the disk in turn. There must always
// be a whole checkpoint from which the run can continue, and nothing may be counted twice
// or lost.
func TestEveryOperationFailsOnce(t *testing.T) {
	clean := &faulty{Disk: fast{}}
	if _, err := saving(t).runOn(context.Background(), clean); err != nil {
		t.Fatal(err)
	}
	opened := slices.Index(clean.ops, "write journal.jsonl")
	stride := 1
	if testing.Short() {
		stride = 5
	}
	for n := opened; n < len(clean.ops); n += stride {
		j := saving(t)
		disk := &faulty{Disk: fast{}, fail: func(i int, _ string) error {
			if i == n {
				return syscall.ENOSPC
			}
			return nil
		}}
		where := fmt.Sprintf("operation %d (%s)", n, clean.ops[n])
		result, err := j.runOn(context.Background(), disk)
		var failed *CheckpointError
		switch {
		case err == nil && result.Finished:
		case errors.As(err, &failed) && errors.Is(err, syscall.ENOSPC) && failed.Newest == 4 && failed.Step == 6:
		default:
			t.Fatalf("%s: %+v, %v", where, result, err)
		}
		if err == nil {
			j.account(6)
		}
		journal, readErr := runs.ReadJournal(j.dir)
		if readErr != nil || len(journal) < len(j.entries)-1 {
			t.Fatalf("%s: %d of %d entries in the journal: %v", where, len(journal), len(j.entries), readErr)
		}
		j.lab.allocFails = nil
		if result, err := j.run(context.Background()); err != nil || result.Resumed < 4 {
			t.Fatalf("%s: afterwards %+v, %v", where, result, err)
		}
		j.account(6)
		leftovers(t, j.dir)
	}
}

func TestFullDisk(t *testing.T) {
	full := func(from, to int) (*journey, *faulty) {
		j := newJourney(t, plan64.WithMicro(16), 12)
		j.options.CheckpointEvery = 2
		disk := &faulty{Disk: fast{}}
		step := 0
		j.lab.before = func(_ *lab, s int) { step = s }
		disk.fail = func(_ int, op string) error {
			if step >= from && step < to && strings.HasPrefix(op, "write ") {
				return syscall.ENOSPC
			}
			return nil
		}
		return j, disk
	}
	t.Run("for a while", func(t *testing.T) {
		j, disk := full(5, 9)
		result, err := j.runOn(context.Background(), disk)
		if err != nil || !result.Finished {
			t.Fatal(err)
		}
		if n := strings.Count(j.kinds(), string(runs.KindJournalFailed)); n != 1 {
			t.Errorf("the broken journal was told %d times: %s", n, j.kinds())
		}
		if n := strings.Count(j.kinds(), string(runs.KindCheckpointFailed)); n != 2 {
			t.Errorf("%d checkpoints failed, want those of steps 6 and 8: %s", n, j.kinds())
		}
		journal, err := runs.ReadJournal(j.dir)
		if err != nil || len(journal) != len(j.entries) {
			t.Errorf("%d of %d entries reached the journal: %v", len(journal), len(j.entries), err)
		}
		j.account(12)
	})
	t.Run("to the end", func(t *testing.T) {
		j, disk := full(5, 100)
		result, err := j.runOn(context.Background(), disk)
		var failed *CheckpointError
		if !errors.As(err, &failed) || failed.Newest != 4 || result.Steps != 12 || result.Finished {
			t.Fatalf("%+v, %v", result, err)
		}
		leftovers(t, j.dir)
		for _, want := range []string{"step 12", "no space left", j.dir, "continues from step 4"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q does not say %q", err, want)
			}
		}
		if result := j.mustRun(); result.Resumed != 4 {
			t.Errorf("went on from %d", result.Resumed)
		}
		j.account(12)
		leftovers(t, j.dir)
	})
}

// TestSaveAgain checks that a checkpoint that was renamed but could not be made durable is
// whole. Saving the same step again then only makes it durable.
func TestSaveAgain(t *testing.T) {
	disk := &faulty{Disk: fast{}}
	dir := filepath.Join(t.TempDir(), "run")
	f, err := runs.OpenOn(dir, disk)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	disk.fail = func(_ int, op string) error {
		if op == "syncdir checkpoints" {
			return syscall.EIO
		}
		return nil
	}
	state := func(w io.Writer) error { _, err := io.WriteString(w, "state"); return err }
	if _, _, err := f.SaveCheckpoint(runs.Checkpoint{Step: 3}, state); !errors.Is(err, syscall.EIO) {
		t.Fatal(err)
	}
	disk.fail, disk.ops = nil, nil
	if c, _, err := f.SaveCheckpoint(runs.Checkpoint{Step: 3}, state); err != nil || c.Size != 5 {
		t.Fatalf("%+v, %v", c, err)
	}
	if !slices.Equal(disk.ops, []string{"mkdir checkpoints", "syncdir checkpoints"}) {
		t.Errorf("operations %v", disk.ops)
	}
	mustWrite(t, filepath.Join(dir, "checkpoints", "step-000003", "state.safetensors"), "stale")
	if _, _, err := f.SaveCheckpoint(runs.Checkpoint{Step: 3}, state); err != nil {
		t.Fatal(err)
	}
	if c, bad, err := f.NewestCheckpoint(); err != nil || c == nil || c.Step != 3 || len(bad) > 0 {
		t.Errorf("%+v, %v, %v", c, bad, err)
	}
}

// TestCheckpointOrder checks that every file of a checkpoint is on disk before the
// checkpoint gets its final name, and that the metrics are on disk before the checkpoint.
func TestCheckpointOrder(t *testing.T) {
	j := newJourney(t, plan64.WithMicro(16), 1)
	disk := &faulty{Disk: fast{}}
	if _, err := j.runOn(context.Background(), disk); err != nil {
		t.Fatal(err)
	}
	from := slices.Index(disk.ops, "write metrics.jsonl")
	to := slices.Index(disk.ops, "syncdir checkpoints")
	want := `write metrics.jsonl
sync metrics.jsonl
mkdir checkpoints
mkdir .step-000001.tmp
create state.safetensors
write state.safetensors
sync state.safetensors
close state.safetensors
create meta.json
write meta.json
sync meta.json
close meta.json
syncdir .step-000001.tmp
rename step-000001
syncdir checkpoints`
	if got := strings.Join(disk.ops[from:to+1], "\n"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
