package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"headroom/cmd/headroom/ui"
	"headroom/runs"
)

// crashesAbort makes a crash end the program with SIGABRT. By default, the Go runtime would
// exit with status 2, which headroom uses for a mistake on the command line: a script that
// restarts headroom after crashes would then not restart it.
//
// An aborted process leaves a core dump with all the memory of the run, if the limit on core
// dumps allows that. So crashesAbort sets the limit to 0. It leaves the limit as it is if
// GOTRACEBACK=crash asks for a core dump, or if alone is false: then headroom starts a
// command, which would inherit the limit.
func crashesAbort(env func(string) (string, bool), alone bool) {
	debug.SetTraceback("crash")
	if wanted, _ := env("GOTRACEBACK"); wanted == "crash" || !alone {
		return
	}
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_CORE, &limit) == nil {
		limit.Cur = 0
		_ = unix.Setrlimit(unix.RLIMIT_CORE, &limit) // lowering it is always allowed
	}
}

// fewestFiles is the smallest number of open files that a run needs, for its folder, the Go runtime
// and the GPU driver.
const fewestFiles = 64

// enoughFiles returns a usage error if the limit on open files is so low that the Go
// runtime itself would crash.
func enoughFiles() error {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil || limit.Cur >= fewestFiles {
		return nil
	}
	return ui.Usagef(fmt.Sprintf("ulimit -n %d, or LimitNOFILE=%[1]d in a systemd unit", 1024),
		"this process may open only %d files, and a run needs %d", limit.Cur, fewestFiles)
}

// crashLog is the file in a run's folder to which the Go runtime writes its report if
// the program crashes. Until then it is empty.
type crashLog struct {
	file  *os.File
	close func() error // removes the file if it is empty; may be called twice
}

// openCrashLog creates the next of the files logs/crash-NNN.log in dir, and removes the
// empty ones that killed processes left behind. This process must hold the lock on dir.
func openCrashLog(dir string) (*crashLog, error) {
	number := 1
	for _, path := range crashLogs(dir) {
		if info, err := os.Stat(path); err == nil && info.Size() == 0 {
			_ = os.Remove(path) // if that fails the file stays, and is ignored
			continue
		}
		var n int
		if _, err := fmt.Sscanf(filepath.Base(path), "crash-%d.log", &n); err == nil {
			number = max(number, n+1)
		}
	}
	f, err := os.OpenFile(filepath.Join(dir, "logs", fmt.Sprintf("crash-%03d.log", number)), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return nil, err
	}
	c := &crashLog{file: f}
	c.close = sync.OnceValue(c.end)
	if err := debug.SetCrashOutput(f, debug.CrashOptions{}); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

func (c *crashLog) end() error {
	err := debug.SetCrashOutput(nil, debug.CrashOptions{})
	if info, unknown := c.file.Stat(); unknown == nil && info.Size() == 0 {
		err = errors.Join(err, os.Remove(c.file.Name()))
	}
	return errors.Join(err, c.file.Close())
}

// crashLogs returns the paths of the crash logs in a run's folder, oldest first.
func crashLogs(dir string) []string {
	all, _ := filepath.Glob(filepath.Join(dir, "logs", "crash-*.log")) // the pattern is valid
	return all
}

// crash describes how the process of a stale run crashed.
type crash struct {
	Error string `json:"error"` // see crashText
	Trace string `json:"trace"` // path of the file with the whole report of the Go runtime
}

// crashOf returns the crash of the newest process of the run in dir, or nil if that
// process did not crash. The newest crash log belongs to that process, which created the
// file when it started. If the process ended in another way, the file is empty or removed.
func crashOf(dir string) *crash {
	all := crashLogs(dir)
	if len(all) == 0 {
		return nil
	}
	newest := all[len(all)-1]
	f, err := os.Open(newest)
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }() // only read
	if text := crashText(f); text != "" {
		return &crash{text, newest}
	}
	return nil
}

// crashText returns one line that says what a report of the Go runtime is about, or "" if the
// report is empty. For a panic or a signal, it returns the line of the report that names the
// panic or the signal. The runtime writes the text of a fatal error to stderr only, so for such
// an error crashText names the function in which it happened.
func crashText(report io.Reader) string {
	text := ""
	for lines := bufio.NewScanner(report); lines.Scan(); {
		l := lines.Text()
		name, called := l, strings.LastIndexByte(l, '(')
		if called >= 0 {
			name = l[:called]
		}
		switch {
		case strings.HasPrefix(l, "panic: "), strings.HasPrefix(l, "fatal error: "), strings.HasPrefix(l, "SIG"):
			return l
		case called >= 0 && !strings.HasPrefix(l, "\t") && !strings.HasPrefix(l, "goroutine ") && !strings.HasPrefix(l, "runtime.") && !strings.HasSuffix(name, ".fatal"):
			return "fatal error in " + name
		case text == "":
			text = strings.TrimSpace(l)
		}
	}
	return text
}

// watchCrashes opens the run's crash log, so that the Go runtime writes its report there if
// this process crashes. If the log cannot be opened, watchCrashes only warns.
func (s *runner) watchCrashes(folder *runs.Folder) {
	log, err := openCrashLog(folder.Dir())
	if err != nil {
		s.u.Warn("no crash log: %v", err)
		log = &crashLog{close: func() error { return nil }}
	}
	s.crash = log
}
