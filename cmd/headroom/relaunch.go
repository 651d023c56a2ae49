package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"syscall"

	"headroom/harness"
)

// relaunchKey is the environment variable in which a process whose device was
// lost tells the one that takes its place what to go on with.
const relaunchKey = "HEADROOM_RELAUNCH"

// relaunch is a run that goes on in a new process. The context of a device that
// was lost stays broken as long as the process lives, so the process replaces
// itself: whoever started it, and waits for it or signals it, notices nothing.
type relaunch struct {
	Dir      string `json:"dir"`      // the run's folder; its run.yaml counts, whatever has become of the user's file
	Device   string `json:"device"`   // kind of the one that was lost: auto is not to settle for a lesser one
	Resumed  int    `json:"resumed"`  // step that the command began with
	Failures int    `json:"failures"` // of memory that the command has survived
}

// predecessor is what this process is to go on with, nil if a user started it.
func predecessor() (*relaunch, error) {
	text, ok := os.LookupEnv(relaunchKey)
	if !ok {
		return nil, nil
	}
	r := &relaunch{}
	if err := json.Unmarshal([]byte(text), r); err != nil || r.Dir == "" {
		return nil, usagef("unset "+relaunchKey, "%s=%s: not written by headroom", relaunchKey, text)
	}
	return r, os.Unsetenv(relaunchKey) // the next loss writes its own
}

// carry puts what the command had come to before into result.
func (r *relaunch) carry(result *harness.Result) {
	if r != nil {
		result.Resumed = r.Resumed
		result.Failures += r.Failures
	}
}

// exec replaces this process by a new one with the same arguments. It returns
// only if that fails.
func (r *relaunch) exec() error {
	path, err := os.Executable()
	if err != nil {
		return fmt.Errorf("relaunch: %w", err)
	}
	text, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("relaunch: %w", err)
	}
	err = syscall.Exec(path, os.Args, append(os.Environ(), relaunchKey+"="+string(text)))
	return fmt.Errorf("relaunch %s: %w", path, err)
}

// relaunches tells whether err asks for a new process.
func relaunches(err error) bool {
	var lost *harness.DeviceLost
	return errors.As(err, &lost) && lost.Decision.Remedy == harness.Relaunch
}

// goesOn replaces this process if err asks for it. An interrupt that came after
// the harness had looked for one counts.
func (s *session) goesOn(interrupt <-chan struct{}, result harness.Result, kind string, err error) error {
	if !relaunches(err) {
		return err
	}
	select {
	case <-interrupt:
		return fmt.Errorf("not relaunched: %w", context.Canceled)
	default:
	}
	s.u.screen.show("")
	next := relaunch{Dir: s.dir, Device: kind, Resumed: result.Resumed, Failures: result.Failures}
	return errors.Join(err, next.exec())
}
