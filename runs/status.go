package runs

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"headroom/memory"
	"headroom/recovery"
)

// State says how far a run has got.
type State string

// The states of a run.
const (
	StateRunning     State = "running"
	StateInterrupted State = "interrupted" // resumable: the same command continues
	StateDone        State = "done"
	StateFailed      State = "failed"
	StateStale       State = "stale" // the file says running, but no process holds the folder: the run was killed; found by ReadStatus, never written
)

// Status is the state of a run at one moment, for people who check on it and for schedulers.
type Status struct {
	State            State           `json:"state"`
	PID              int             `json:"pid"` // of the process that wrote this
	Host             string          `json:"host"`
	Attempt          int             `json:"attempt"`
	Step             int             `json:"step"`           // optimizer steps finished; of a wrapped command, the step of its newest checkpoint
	From             int             `json:"from,omitempty"` // step from which the attempt began
	Steps            int             `json:"steps"`          // of the whole run; 0 for a wrapped command
	Plan             recovery.Plan   `json:"plan"`
	Loss             float64         `json:"loss"`               // of the newest step
	SamplesPerSecond float64         `json:"samples_per_second"` // since the previous status
	Peak             memory.Bytes    `json:"peak"`               // of the newest step
	Capacity         memory.Bytes    `json:"capacity"`
	Failures         int             `json:"failures"`              // out-of-memory failures in the whole run, including the one that ended it
	DeviceGone       int             `json:"device_gone,omitempty"` // how many times the device was lost, in the whole run
	Verdict          *memory.Verdict `json:"verdict,omitempty"`     // of the newest out-of-memory failure
	Reason           string          `json:"reason,omitempty"`      // why the newest decision was made; once the run has ended, why it ended
	Started          time.Time       `json:"started"`               // when this process started the run
	Updated          time.Time       `json:"updated"`
	Command          *Process        `json:"command,omitempty"` // the wrapped command that was started last, while it has not ended
	Socket           string          `json:"socket,omitempty"`  // at which the command's processes can be asked for an account of their memory; "" if they cannot
	Place            string          `json:"place,omitempty"`   // folder in which a wrapped command keeps its checkpoints; "" if it is not known
	Every            float64         `json:"every,omitempty"`   // seconds between updates while a wrapped command is alive; 0 if it is not, or if regular updates are not guaranteed
}

// Process identifies a process of a machine, even after its number has been used again.
type Process struct {
	PID   int    `json:"pid"`
	Group int    `json:"group"` // its process group
	Start uint64 `json:"start"` // when it was started, in clock ticks since the machine was
	Boot  string `json:"boot"`  // the kernel's id of that start of the machine

	Script string `json:"script,omitempty"` // the Python script, or module, among the words of its command line
}

// SetStatus replaces status.json. Once the run has ended, its status survives a power
// loss. If the status of a run that has ended cannot be written, its state alone is kept elsewhere,
// if possible (see [Folder.EndRecorded]).
func (f *Folder) SetStatus(s Status) error {
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("write status.json: %w", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if s.State == StateRunning {
		return f.kept(func() error { return writeFile(f.disk, f.path("status.json"), append(text, '\n'), false) })
	}
	err = f.kept(func() error { return f.replace("status.json", append(text, '\n')) })
	if err != nil {
		f.ended = f.markEnded(s.State) == nil
	}
	return err
}

// EndRecorded reports whether readers will know the state in which the run has ended although
// SetStatus failed.
func (f *Folder) EndRecorded() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ended
}

// ReadStatus reads the status of the run in dir. It needs no lock. If the status says
// that the run is running, but no process holds the folder, the state is [StateStale], unless the run
// ended and only its status could not be written.
// If there is no status yet, the error wraps [os.ErrNotExist].
func ReadStatus(dir string) (Status, error) {
	var s Status
	text, err := os.ReadFile(filepath.Join(dir, "status.json"))
	if errors.Is(err, os.ErrNotExist) && !alive(dir) {
		if s.State = holder(dir).Ended; s.State != "" {
			return s, nil
		}
	}
	if err != nil {
		return s, fmt.Errorf("read status: %w", err)
	}
	old := struct {
		*Status
		Losses int `json:"losses"` // the name of DeviceGone in earlier versions
	}{Status: &s}
	if err := json.Unmarshal(text, &old); err != nil {
		return s, fmt.Errorf("read status: %s: %w", filepath.Join(dir, "status.json"), err)
	}
	s.DeviceGone = max(s.DeviceGone, old.Losses)
	if s.State == StateRunning && !alive(dir) {
		s.State = cmp.Or(holder(dir).Ended, StateStale)
	}
	return s, nil
}
