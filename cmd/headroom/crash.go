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

	"headroom/runs"
)

// crashesAbort makes a crash end the program with SIGABRT. The runtime's own choice is
// status 2, which here means a mistake on the command line: a script that starts a run
// again after a crash would not do so.
//
// Where the limit allows it, a process that aborts leaves a core dump with all the memory
// of the run. So the limit is set to 0, unless GOTRACEBACK=crash asks for a core dump or
// a command will inherit the limit: then it stays as the user has set it.
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

// fewestFiles is how many open files a run needs at least: those of its folder, of the runtime and
// of a GPU's driver.
const fewestFiles = 64

// enoughFiles refuses a limit on open files so low that the runtime itself would
// crash.
func enoughFiles() error {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil || limit.Cur >= fewestFiles {
		return nil
	}
	return usagef(fmt.Sprintf("ulimit -n %d, or LimitNOFILE=%[1]d in a systemd unit", 1024),
		"this process may open only %d files, and a run needs %d", limit.Cur, fewestFiles)
}

// crashLog is the file in a run's folder to which the runtime writes its report when
// the program crashes. It is empty as long as that does not happen.
type crashLog struct {
	file  *os.File
	close func() error // removes it if it is empty; may be called twice
}

// openCrashLog makes the next of the files logs/crash-NNN.log in dir, which this
// process holds, and removes the empty ones left by processes that were killed.
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

// crashLogs are the files of crashes in a run's folder, oldest first.
func crashLogs(dir string) []string {
	all, _ := filepath.Glob(filepath.Join(dir, "logs", "crash-*.log")) // the pattern is valid
	return all
}

// crash is how the process of a stale run ended.
type crash struct {
	Error string `json:"error"` // see crashText
	Trace string `json:"trace"` // path of the file with the runtime's whole report
}

// crashOf is the crash of the newest process of the run in dir, nil if it did not
// crash. The newest crash log belongs to that process, which created it when it
// started; any end but a crash leaves the file empty or removes it.
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

// crashText says what a report of the runtime is about, "" if the report is empty.
// The report names a panic or a signal; the text of a fatal error goes to stderr
// only, so such an error is named by the place where it happened.
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

// watchCrashes gives the runtime a file in the run's folder for its last words.
func (s *runner) watchCrashes(folder *runs.Folder) {
	log, err := openCrashLog(folder.Dir())
	if err != nil {
		s.u.warn("no crash log: %v", err)
		log = &crashLog{close: func() error { return nil }}
	}
	s.crash = log
}
