package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"headroom/cmd/headroom/ui"
	"headroom/harness"
	"headroom/job"
	"headroom/recovery"
	"headroom/runs"
)

// execKey is the environment variable that carries a [handover] from a process whose
// device was lost to the process that replaces it.
const execKey = "HEADROOM_EXEC"

// handover describes a run that continues in a new process. After a device is lost, a
// process cannot use it again, so the process replaces itself by means of exec. Its process
// ID stays the same: a parent that waits for the process or signals it notices nothing.
type handover struct {
	PID      int      `json:"pid"`      // of the process that wrote this; the one that replaces it has the same
	Lock     int      `json:"lock"`     // the descriptor that holds the lock on the folder
	Dir      string   `json:"dir"`      // the run's folder; its run.yaml counts, even if the user's file has changed
	Device   string   `json:"device"`   // kind of the device that was lost; the new process opens the same kind, even with auto
	Resumed  int      `json:"resumed"`  // step at which the user's command began
	Failures int      `json:"failures"` // out-of-memory failures that the user's command has survived
	Notify   []string `json:"notify"`   // who is told about the run
}

// predecessor returns the run that this process is to continue, or nil if this process did
// not replace another one. It removes [execKey] from the environment.
func predecessor() (*handover, error) {
	text, ok := os.LookupEnv(execKey)
	if !ok {
		return nil, nil
	}
	r := &handover{}
	if err := json.Unmarshal([]byte(text), r); err != nil || r.PID != os.Getpid() {
		return nil, ui.Usagef("unset "+execKey, "%s=%s: not set by headroom for this process", execKey, text)
	}
	return r, os.Unsetenv(execKey) // the next exec writes its own
}

// carry completes result with what an earlier process of this run had counted before this
// process replaced it. If this process replaced none, r is nil and result stays as it is.
func (r *handover) carry(result *harness.Result) {
	if r != nil {
		result.Resumed = r.Resumed
		result.Failures += r.Failures
	}
}

// open opens the run that r describes.
func (r *handover) open() (*job.Job, *runs.Folder, error) {
	cfg, err := keptConfig(r.Dir)
	if err != nil {
		return nil, nil, ui.AsUsage(err)
	}
	folder, err := runs.Inherit(cfg.RunDir(), r.Lock)
	if err != nil {
		return nil, nil, ui.AsUsage(err)
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

// notOpened ends a command that never got as far as training, and returns the error to exit
// with. If an earlier process began the command, notOpened also sends the last JSON line,
// because whoever read the lines of that process is waiting for it.
func (s *runner) notOpened(before *handover, err error) error {
	if before == nil {
		return err
	}
	if !ui.IsInterrupted(err) {
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

// program returns the path of the file that this process runs. If an update or a build has
// replaced or removed that file, program returns the name by which the kernel still reaches
// the old one, so that a run continues with the program that it began with.
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

// execs reports whether err asks for a new process to continue the run.
func execs(err error) bool {
	var lost *harness.DeviceGoneError
	return errors.As(err, &lost) && lost.Decision.Remedy == recovery.Exec
}

// goesOn replaces this process with one that continues the run, as err asks; next
// describes the run. goesOn returns only if the process was not replaced. The lock on the
// folder stays held throughout.
//
// An interrupt still stops the run if it arrives after the harness last checked for one,
// but before done has restored the default effect of signals. After that, it takes a few
// milliseconds until the new process catches signals. A signal in that time kills the
// process, as at the start of any program. The run is then stale.
func (s *runner) goesOn(interrupt <-chan struct{}, done func(), folder *runs.Folder, next handover, err error) error {
	lock, unwritten := folder.HandOver()
	done()
	select {
	case <-interrupt:
		return errors.Join(fmt.Errorf("not restarted: %w", context.Canceled), unwritten, lock.Close())
	default:
	}
	s.u.Screen.Show("")
	next.PID, next.Lock = os.Getpid(), int(lock.Fd())
	return errors.Join(err, unwritten, next.exec(), lock.Close())
}
