package runs

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// errNoCheckpoint means that there is no checkpoint of the given step at all.
var errNoCheckpoint = errors.New("no such checkpoint")

// damageError reports why a checkpoint is not whole. Other errors in reading a
// checkpoint, such as a missing permission, are for the user to fix: continuing from an
// older checkpoint would throw work away.
type damageError struct{ why string }

func (e *damageError) Error() string { return e.why }

// Damaged describes a checkpoint that was found not to be whole.
type Damaged struct {
	Step int
	Why  string
	Name string // base name that the checkpoint has now
}

// checkpointSteps lists the steps that have a checkpoint, newest first,
// without looking into them.
func (f *Folder) checkpointSteps() ([]int, error) {
	held, err := os.ReadDir(f.path("checkpoints"))
	if err != nil {
		return nil, err
	}
	var steps []int
	for _, e := range held {
		number, ok := strings.CutPrefix(e.Name(), "step-")
		if step, err := strconv.Atoi(number); ok && err == nil && step >= 0 && CheckpointName(step) == e.Name() {
			steps = append(steps, step)
		}
	}
	slices.Sort(steps)
	slices.Reverse(steps)
	return steps, nil
}

// NewestCheckpoint returns the newest checkpoint that is whole, or nil if there is
// none. It sets aside the damaged checkpoints that are newer, and returns a description
// of each.
func (f *Folder) NewestCheckpoint() (*Checkpoint, []Damaged, error) {
	steps, err := f.checkpointSteps()
	if err != nil {
		return nil, nil, err
	}
	var bad []Damaged
	for _, step := range steps {
		c, err := f.verify(step)
		if err == nil {
			return &c, bad, nil
		}
		why := (*damageError)(nil)
		if !errors.As(err, &why) {
			return nil, bad, fmt.Errorf("read checkpoint %s: %w", CheckpointName(step), err)
		}
		name, err := f.setAsideDamaged(step)
		if err != nil {
			name = CheckpointName(step) // the name stays; the next save of this step tries again
		}
		bad = append(bad, Damaged{Step: step, Why: why.why, Name: name})
	}
	return nil, bad, nil
}

func (f *Folder) setAsideDamaged(step int) (string, error) {
	from := f.path("checkpoints", CheckpointName(step))
	to, err := renameFree(f.disk, from, f.path("checkpoints", "damaged-"+CheckpointName(step)), 0)
	if err != nil {
		return "", fmt.Errorf("set aside damaged %s: %w", CheckpointName(step), err)
	}
	return to[len(f.path("checkpoints"))+1:], nil
}

// verify reads a checkpoint's meta.json and checks that the state has the size and hash
// recorded there. If there is no checkpoint, the error is errNoCheckpoint; if it is not
// whole, the error is a *damageError.
func (f *Folder) verify(step int) (Checkpoint, error) {
	var c Checkpoint
	name := CheckpointName(step)
	if _, err := os.Lstat(f.path("checkpoints", name)); errors.Is(err, fs.ErrNotExist) {
		return c, errNoCheckpoint
	}
	text, err := os.ReadFile(f.path("checkpoints", name, "meta.json"))
	if err != nil {
		return c, readError("meta.json", err)
	}
	if err := json.Unmarshal(text, &c); err != nil {
		return c, &damageError{fmt.Sprintf("meta.json: %v", err)}
	}
	if c.Version > CheckpointVersion {
		return c, fmt.Errorf("it has format version %d, but this headroom reads only up to version %d; update headroom", c.Version, CheckpointVersion)
	}
	if c.Step != step {
		return c, &damageError{fmt.Sprintf("meta.json names step %d", c.Step)}
	}
	return c, c.verifyState(f.path("checkpoints", name, "state.safetensors"))
}

func (c Checkpoint) verifyState(path string) error {
	state, err := os.Open(path)
	if err != nil {
		return readError("state.safetensors", err)
	}
	defer func() { _ = state.Close() }() // only read
	sum := sha256.New()
	size, err := io.Copy(sum, state)
	if err != nil {
		return readError("state.safetensors", err)
	}
	if size != c.Size {
		return &damageError{fmt.Sprintf("state.safetensors has %d bytes, but %d were written", size, c.Size)}
	}
	if hex.EncodeToString(sum.Sum(nil)) != c.SHA256 {
		return &damageError{"state.safetensors does not have the SHA-256 it was written with"}
	}
	return nil
}

// readError returns a *damageError if err says that the file is missing, or that it or
// the disk under it is broken. Otherwise it returns err.
func readError(name string, err error) error {
	for _, broken := range []error{fs.ErrNotExist, syscall.ENOTDIR, syscall.EISDIR, syscall.EIO} {
		if errors.Is(err, broken) {
			return &damageError{fmt.Sprintf("%s: %v", name, errors.Unwrap(err))}
		}
	}
	return err
}

// LoadCheckpoint calls load with a reader of the state in the checkpoint of the given
// step.
func (f *Folder) LoadCheckpoint(step int, load func(io.Reader) error) error {
	state, err := os.Open(f.path("checkpoints", CheckpointName(step), "state.safetensors"))
	if err != nil {
		return err
	}
	defer func() { _ = state.Close() }() // only read
	return load(bufio.NewReaderSize(state, 1<<20))
}

// Prune keeps the newest checkpoints, as many as keep says, and removes the others. It
// gives each of these a temporary name before it removes it, so that nothing that bears
// the name of a checkpoint is ever half removed. The next Open removes whatever still has
// a temporary name.
func (f *Folder) Prune(keep int) error {
	steps, err := f.checkpointSteps()
	if err != nil {
		return err
	}
	for _, step := range steps[min(keep, len(steps)):] {
		name := CheckpointName(step)
		doomed := f.path("checkpoints", "."+name+".old.tmp")
		if err := f.disk.Rename(f.path("checkpoints", name), doomed); err != nil {
			return err
		}
		if err := f.disk.Remove(doomed); err != nil {
			return err
		}
	}
	return nil
}
