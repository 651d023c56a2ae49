package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"headroom/harness"
	"headroom/job"
	"headroom/recovery"
	"headroom/runs"
)

// execKey is the environment variable in which a process whose device was lost
// tells the process that replaces it what to continue.
const execKey = "HEADROOM_EXEC"

// handover is a run that continues in a new process. The context of a device that
// was lost stays broken as long as the process lives, so the process replaces
// itself: whoever started it, and waits for it or signals it, notices nothing.
type handover struct {
	PID      int    `json:"pid"`      // of the process that wrote this, and so of the one that replaces it
	Lock     int    `json:"lock"`     // the descriptor that holds the lock on the folder
	Dir      string `json:"dir"`      // the run's folder; its run.yaml counts, whatever has become of the user's file
	Device   string `json:"device"`   // kind of the device that was lost: auto must not settle for a lesser one
	Resumed  int    `json:"resumed"`  // step that the command began with
	Failures int    `json:"failures"` // out-of-memory failures that the command has survived
}

// predecessor is the run that this process is to continue, nil if a user started it.
func predecessor() (*handover, error) {
	text, ok := os.LookupEnv(execKey)
	if !ok {
		return nil, nil
	}
	r := &handover{}
	if err := json.Unmarshal([]byte(text), r); err != nil || r.PID != os.Getpid() {
		return nil, usagef("unset "+execKey, "%s=%s: not written by headroom for this process", execKey, text)
	}
	return r, os.Unsetenv(execKey) // the next exec writes its own
}

// carry adds to result what the command had counted in the process that this one
// replaced.
func (r *handover) carry(result *harness.Result) {
	if r != nil {
		result.Resumed = r.Resumed
		result.Failures += r.Failures
	}
}

// open opens the run to continue.
func (r *handover) open() (*job.Job, *runs.Folder, error) {
	cfg, err := keptConfig(r.Dir)
	if err != nil {
		return nil, nil, asUsage(err)
	}
	folder, err := runs.Inherit(cfg.RunDir(), r.Lock)
	if err != nil {
		return nil, nil, asUsage(err)
	}
	j, err := opened(cfg)
	if err == nil {
		err = goOn(j.Config) // the data may have changed by now
	}
	if err != nil {
		return nil, nil, errors.Join(err, folder.Close())
	}
	j.Config.Device.Kind = r.Device
	return j, folder, nil
}

// notOpened ends a command that never got as far as training. If an earlier process
// began the command, whoever reads its JSON lines is waiting for the last line.
func (s *runner) notOpened(before *handover, err error) error {
	if before == nil {
		return err
	}
	if !isInterrupted(err) {
		err = fmt.Errorf("continue after the device was lost: %w", err)
	}
	last := &runner{u: s.u, stream: s.stream, name: filepath.Base(before.Dir), dir: before.Dir} // s may still be in use by the goroutine that opens the run
	last.last(harness.Result{Resumed: before.Resumed, Failures: before.Failures}, err)
	return err
}

// exec replaces this process with a new one that has the same arguments. It returns
// only if that fails.
func (r *handover) exec() error {
	text, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("exec: %w", err)
	}
	path := program()
	err = syscall.Exec(path, os.Args, append(os.Environ(), execKey+"="+string(text)))
	return fmt.Errorf("exec %s: %w; run the same command again to continue from the newest checkpoint", path, err)
}

// program is the file that this process runs. If an update or a build has replaced
// or removed it, program is still the old file, under the name that the kernel keeps
// for it: a run continues with the program that it began with.
func program() string {
	const self = "/proc/self/exe"
	path, err := os.Executable()
	if err != nil {
		return self
	}
	runs, err := os.Stat(self)
	if err != nil { // not Linux
		return path
	}
	if there, err := os.Stat(path); err != nil || !os.SameFile(there, runs) {
		return self
	}
	return path
}

// execs reports whether err asks for a new process.
func execs(err error) bool {
	var lost *harness.DeviceGoneError
	return errors.As(err, &lost) && lost.Decision.Remedy == recovery.Exec
}

// goesOn replaces this process, as err asks. The folder stays held. An interrupt that
// comes after the harness last checked for one still counts, until done has given the
// signals back. From then on, for the milliseconds until the new process catches
// signals, a signal kills it, as at the start of any program, and the run is stale.
func (s *runner) goesOn(interrupt <-chan struct{}, done func(), folder *runs.Folder, next handover, err error) error {
	lock, unwritten := folder.HandOver()
	done()
	select {
	case <-interrupt:
		return errors.Join(fmt.Errorf("not restarted: %w", context.Canceled), unwritten, lock.Close())
	default:
	}
	s.u.screen.show("")
	next.PID, next.Lock = os.Getpid(), int(lock.Fd())
	return errors.Join(err, unwritten, next.exec(), lock.Close())
}
