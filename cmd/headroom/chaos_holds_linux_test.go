package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"headroom/runs"
)

// held plays the round, and then checks that headroom has kept its promises. It returns an
// error about every promise that was broken.
func (r round) held() error {
	ends, errs := make([]played, 1), make([]error, 1)
	if r.twin {
		ends, errs = make([]played, 2), make([]error, 2)
	}
	var all sync.WaitGroup
	for i := range ends {
		all.Go(func() { ends[i], errs[i] = r.play() })
	}
	all.Wait()
	errs = append(errs, r.nothingLeft(ends[0]))
	for _, end := range ends {
		errs = append(errs, r.ended(end), r.kept(end), r.saved(end))
	}
	if r.twin && ends[0].run == ends[1].run {
		errs = append(errs, fmt.Errorf("two runs in the folder %s", ends[0].run))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%w\nit printed %q, and\n%s", err, ends[0].lines, ends[0].errs)
	}
	return nil
}

// nothingLeft checks that no process of the round is left. If headroom was killed,
// nothingLeft checks only the child, because the system then asks only the child to end.
func (r round) nothingLeft(end played) error {
	var err error
	if end.status < 0 && !r.toy.deaf && end.child >= 0 && !gone(end.child) {
		err = errors.New("the child outlived headroom")
	}
	left := r.marked()
	if end.status >= 0 && len(left) > 0 {
		err = fmt.Errorf("%d processes outlived the run", len(left))
	}
	for _, fd := range append(left, end.child) {
		if fd >= 0 {
			_ = unix.PidfdSendSignal(fd, syscall.SIGKILL, nil, 0)
			gone(fd)
			_ = unix.Close(fd)
		}
	}
	return err
}

// gone waits for a process to end, and reports whether it did.
func gone(pidfd int) bool {
	until := time.Now().Add(patience)
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, int(time.Until(until).Milliseconds()))
		if !errors.Is(err, syscall.EINTR) {
			return n == 1 && err == nil
		}
	}
}

// marked returns pidfds of the processes that have the round's mark in their environment.
// What the toy has left behind on purpose is not among them: headroom leaves it alone, and marked ends it.
func (r round) marked() (left []int) {
	environments, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, name := range environments {
		var pid int
		_, _ = fmt.Sscanf(name, "/proc/%d/", &pid)
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue
		}
		text, _ := os.ReadFile(name)
		if slices.ContainsFunc(bytes.Split(text, []byte{0}), func(v []byte) bool { return string(v) == r.mark }) {
			words, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			if bytes.Contains(words, []byte("\x00-hold\x00")) {
				_ = unix.PidfdSendSignal(fd, syscall.SIGKILL, nil, 0)
				_ = unix.Close(fd)
				continue
			}
			left = append(left, fd)
			continue
		}
		_ = unix.Close(fd)
	}
	return left
}

// ended checks that headroom's exit status and output are those of the command.
func (r round) ended(end played) error {
	want := []int{r.toy.code}
	switch {
	case r.headroom == syscall.SIGKILL:
		want = []int{-1}
	case r.child != 0, r.toy.deaf && r.headroom == syscall.SIGTERM:
		want = []int{137}
	case r.headroom != 0:
		want = []int{128 + int(r.headroom)}
	}
	if r.headroom != 0 && r.headroom != syscall.SIGKILL && r.after <= len(r.lines(1)) && r.runs {
		want = append(want, 5) // the blow may come after the first attempt
	}
	all := r.lines(2)
	whole := r.name == "none" && len(end.lines) < len(all)
	switch {
	case !slices.Contains(want, end.status):
		return fmt.Errorf("status %d, want %d", end.status, want)
	case whole || len(end.lines) > len(all) || !slices.Equal(end.lines, all[:len(end.lines)]):
		return fmt.Errorf("the output is not %q", all)
	case strings.Contains(end.errs, "goroutine ") || strings.Contains(end.errs, "DATA RACE"):
		return errors.New("headroom crashed")
	}
	return nil
}

// kept checks that the run's status, journal and log record what happened.
func (r round) kept(end played) error {
	if end.run == "" {
		return errors.New("it has no run")
	}
	dir := filepath.Join(r.dir, "runs", end.run)
	state, kind := runs.StateDone, runs.KindDone
	switch {
	case r.headroom == syscall.SIGKILL:
		state, kind = runs.StateStale, ""
	case r.headroom != 0:
		state, kind = runs.StateInterrupted, runs.KindInterrupted
	case end.status != 0:
		state, kind = runs.StateFailed, runs.KindFailed
	}
	var errs []error
	s, err := runs.ReadStatus(dir)
	unwritten := r.small && (s.State == runs.StateStale || errors.Is(err, fs.ErrNotExist))
	if s.State != state && !unwritten {
		errs = append(errs, fmt.Errorf("status %q, want %q: %w", s.State, state, cmp.Or(err, errors.New("it can be read"))))
	}
	entries, err := runs.ReadJournal(dir)
	if err != nil && kind != "" && !r.small {
		errs = append(errs, err)
	}
	removed := r.small || kind == "" && r.toy.breaks == "journal.jsonl" // and headroom was killed before it wrote the file again
	if !removed && (len(entries) == 0 || kind != "" && entries[len(entries)-1].Kind != kind) {
		errs = append(errs, fmt.Errorf("the journal ends with %+v", entries[max(0, len(entries)-1):]))
	}
	if kind == "" || r.small || r.toy.breaks == "logs" {
		return errors.Join(errs...)
	}
	logs, _ := filepath.Glob(filepath.Join(dir, "logs", "output-*.log"))
	var text []byte
	for _, name := range logs {
		one, _ := os.ReadFile(name)
		text = append(text, one...)
	}
	for _, line := range end.lines {
		at := bytes.Index(text, []byte(line))
		if at < 0 {
			return errors.Join(append(errs, fmt.Errorf("no %q where it should be in the log", line))...)
		}
		text = text[at+len(line):]
	}
	return errors.Join(errs...)
}

// saved checks that every checkpoint that was written is there, byte for byte.
func (r round) saved(end played) error {
	names, err := filepath.Glob(filepath.Join(r.dir, "out", "*"))
	if err != nil {
		return err
	}
	for _, line := range end.lines {
		if step, ok := strings.CutPrefix(line, "saved "); ok && !slices.Contains(names, filepath.Join(r.dir, "out", "step-"+step+".json")) {
			return fmt.Errorf("the checkpoint of step %s was removed", step)
		}
	}
	for _, name := range names {
		if strings.HasPrefix(filepath.Base(name), ".") {
			continue // it was being written when the toy was killed
		}
		var step int
		text, err := os.ReadFile(name)
		_, _ = fmt.Sscanf(filepath.Base(name), "step-%d.json", &step)
		whole := toyState(step)
		half := r.toy.half && strings.HasPrefix(whole, string(text)) && !slices.Contains(end.lines, fmt.Sprint("saved ", step))
		switch {
		case err != nil:
			return err
		case string(text) != whole && !half:
			return fmt.Errorf("%s holds %q", name, text)
		}
	}
	return nil
}
