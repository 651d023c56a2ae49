package runs

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"syscall"
	"time"

	"headroom/recovery"
)

// CheckpointVersion is the version of the checkpoint layout that this program writes.
const CheckpointVersion = 1

// Checkpoint is the content of a checkpoint's meta.json, which is stored next to the
// trainer's state.
type Checkpoint struct {
	Version int              `json:"version"`
	Step    int              `json:"step"`    // optimizer steps finished
	Samples int64            `json:"samples"` // samples that those steps took, which is the position of the next sample
	Attempt int              `json:"attempt"`
	Plan    recovery.Plan    `json:"plan"`
	Learned recovery.Learned `json:"learned"`
	Size    int64            `json:"size"`   // bytes of state.safetensors
	SHA256  string           `json:"sha256"` // of state.safetensors, hexadecimal
	Config  string           `json:"config"` // SHA-256 of run.yaml, hexadecimal; "" without one
	Time    time.Time        `json:"time"`
}

// CheckpointName returns the base name of the checkpoint after the given number of
// steps.
func CheckpointName(step int) string { return fmt.Sprintf("step-%06d", step) }

// SaveCheckpoint saves a checkpoint: save writes the trainer's state, and c describes
// it. It writes both under a temporary name, waits for the disk and renames them. If
// there is a whole checkpoint of that step already, it returns that one. After an
// error, no part of the new checkpoint is left, unless it is whole and only the last
// sync failed; the newest whole checkpoint is unchanged. On a full disk the oldest
// checkpoints are removed to make room, as long as the newest is whole; released lists
// their steps.
func (f *Folder) SaveCheckpoint(c Checkpoint, save func(io.Writer) error) (saved Checkpoint, released []int, err error) {
	for {
		saved, err = f.saveOnce(c, save)
		if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
			return saved, released, err
		}
		oldest, ok := f.releaseOldest()
		if !ok {
			return saved, released, err
		}
		released = append(released, oldest)
	}
}

// releaseOldest removes the oldest checkpoint if there are several and the newest is
// whole. It returns the step of the checkpoint that it removed.
func (f *Folder) releaseOldest() (step int, ok bool) {
	steps, err := f.checkpointSteps()
	if err != nil || len(steps) < 2 {
		return 0, false
	}
	if _, err := f.verify(steps[0]); err != nil {
		return 0, false
	}
	return steps[len(steps)-1], f.Prune(len(steps)-1) == nil
}

func (f *Folder) saveOnce(c Checkpoint, save func(io.Writer) error) (saved Checkpoint, err error) {
	f.mu.Lock()
	err = f.kept(func() error { return f.disk.Mkdir(f.path("checkpoints")) }) // somebody may have removed it
	if err == nil {
		err = f.settle()
	}
	f.mu.Unlock()
	if err != nil {
		return c, err
	}
	name := CheckpointName(c.Step)
	beside, final := f.path("checkpoints", "."+name+".tmp"), f.path("checkpoints", name)
	if old, done, err := f.alreadySaved(c.Step); done || err != nil {
		return old, err
	}
	if err := f.disk.Mkdir(beside); err != nil {
		return c, err
	}
	placed := false
	defer func() {
		if !placed {
			err = errors.Join(err, f.disk.Remove(beside))
		}
	}()
	c.Version = CheckpointVersion
	if c.Size, c.SHA256, err = writeState(f.disk, beside+"/state.safetensors", save); err != nil {
		return c, err
	}
	if c.Config, err = f.configHash(); err != nil {
		return c, err
	}
	text, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return c, err
	}
	if err := writeNew(f.disk, beside+"/meta.json", append(text, '\n'), true); err != nil {
		return c, err
	}
	if err := f.disk.SyncDir(beside); err != nil {
		return c, err
	}
	if err := f.disk.Rename(beside, final); err != nil {
		return c, err
	}
	placed = true
	return c, f.disk.SyncDir(f.path("checkpoints"))
}

// alreadySaved handles an existing checkpoint that has the name of the one to be written.
// If it is whole, an earlier rename succeeded but could not be made durable; alreadySaved
// then tries again to sync it, and returns true. Otherwise the checkpoint is damaged and
// could not be set aside before; alreadySaved tries that again.
func (f *Folder) alreadySaved(step int) (Checkpoint, bool, error) {
	c, err := f.verify(step)
	switch {
	case err == nil:
		return c, true, f.disk.SyncDir(f.path("checkpoints"))
	case errors.Is(err, errNoCheckpoint):
		return c, false, nil
	}
	_, err = f.setAsideDamaged(step)
	return c, false, err
}

// OfThisConfig reports whether c was written under the current run.yaml.
func (f *Folder) OfThisConfig(c *Checkpoint) bool {
	now, err := f.configHash()
	return err == nil && now == c.Config
}

func (f *Folder) configHash() (string, error) {
	text, err := f.Config()
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), err
}

// writeState writes what save produces to path, and returns its size in bytes and its
// SHA-256.
func writeState(d Disk, path string, save func(io.Writer) error) (size int64, sum string, err error) {
	f, err := d.Create(path)
	if err != nil {
		return 0, "", err
	}
	state := &counted{to: f, hash: sha256.New()}
	buffer := bufio.NewWriterSize(state, 1<<20)
	if err = save(buffer); err == nil {
		err = buffer.Flush()
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return 0, "", fmt.Errorf("write state.safetensors: %w", err)
	}
	return state.size, hex.EncodeToString(state.hash.Sum(nil)), nil
}

// counted is a writer that passes bytes on to another writer, and counts and hashes
// them.
type counted struct {
	to   io.Writer
	hash hash.Hash
	size int64
}

func (c *counted) Write(p []byte) (int, error) {
	n, err := c.to.Write(p)
	c.hash.Write(p[:n])
	c.size += int64(n)
	return n, err
}
