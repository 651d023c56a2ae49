package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"headroom/cmd/headroom/ui"
	"headroom/harness"
	"headroom/memory"
	"headroom/notify"
	"headroom/report"
	"headroom/runs"
	"headroom/spelling"
	"headroom/wrap"
	"headroom/wrap/command"
)

// reporter is a [wrap.Reporter] that prints what happens to a command. As long as all is well, it
// prints nothing, unless verbose is set.
type reporter struct {
	*ui.UI
	verbose bool
	notes   *notify.Notifier
	refused *memory.OutOfMemoryError // the newest failure in this attempt that was left to the command's own code; nil if there is none
	again   bool                     // the attempt ended with the failure in refused, which has been reported
}

// Entry implements [wrap.Reporter].
func (r *reporter) Entry(e runs.Entry) {
	r.notes.Entry(e)
	switch e.Kind {
	case runs.KindAttempt:
		r.refused, r.again = nil, false
	case runs.KindRefused:
		r.refused = e.OOM
	case runs.KindOOM:
		leak := e.Verdict != nil && e.Verdict.Cause == memory.Leak // a leak has not been reported
		if r.again = r.refused != nil && e.OOM != nil && e.OOM.Requested == r.refused.Requested && !leak; r.again {
			e.Text = "the command ended with " + leftFailure
		}
	}
	switch {
	case r.verbose:
	case e.Kind == runs.KindRun, e.Kind == runs.KindPlan, e.Kind == runs.KindExit, e.Kind == runs.KindCheckpoint, e.Kind == runs.KindCommand, e.Kind == runs.KindWorker, e.Kind == runs.KindMemory,
		e.Kind == runs.KindAttempt && e.Attempt == 1:
		return
	}
	r.UI.Entry(e)
}

// leftFailure is how a message refers to a failure that has already been reported.
const leftFailure = "the failure above, which headroom left to the command's own code"

// ended says how the command ended if the command's own output does not, and draws the report if
// one is worth drawing. The error that it returns carries the command's exit status.
func (w *wrapped) ended(u *ui.UI, result harness.Result, code int, err error) error {
	var exit *wrap.ExitError
	exited := errors.As(err, &exit)
	if why := w.neverRan(exit, err); why != nil && w.made && result.Attempts == 1 {
		if failed := os.RemoveAll(w.Folder.Dir()); failed != nil { // the folder records nothing else
			u.Warn("%v", failed)
		}
		return why
	}
	quiet := exited && !exit.Memory && !exit.Killed && result.Failures == 0 // the command has said everything itself
	w.draw(u, result.Failures > 0 || err != nil && !quiet)
	if exited && code != 0 && !ui.IsInterrupted(err) {
		return &ui.ChildError{Code: code, Err: w.inShort(exit, err), Hint: w.hint(exit), Quiet: quiet}
	}
	return w.last(u, result, code, err)
}

// last prints the last line about a run of a command, if its end does not say enough, and returns
// err with the command's exit status.
func (w *wrapped) last(u *ui.UI, result harness.Result, code int, err error) error {
	switch {
	case err == nil:
		if result.Failures > 0 {
			u.Survived(result)
		}
		return nil
	case ui.IsInterrupted(err):
		w.lostNode(u, err)
		if code != 0 && w.place.Of == 0 { // on several nodes, an engine is to see that the run can go on
			var end *wrap.InterruptedError
			err = &ui.ChildError{Code: code, Err: err, Interrupted: errors.As(err, &end) && end.Signal == syscall.SIGINT}
		}
		u.Stopped(ui.ExitStatus(err), w.goesOn())
		return err
	case errors.As(err, new(*command.StartError)):
		return notStarted(w.Line, err)
	case code != 0:
		return &ui.ChildError{Code: code, Err: err}
	}
	return err
}

// neverRan returns the error for a command that could not be started, or whose script Python could
// not open. It returns nil if the command has run. exit is how the command ended; nil if err is
// about something else.
func (w *wrapped) neverRan(exit *wrap.ExitError, err error) error {
	if exit != nil {
		if name := w.Line.Unopened(exit.Tail); name != "" {
			return neverBegan(w.Line, name, exit.Code)
		}
	}
	if errors.As(err, new(*command.StartError)) {
		return notStarted(w.Line, err)
	}
	return nil
}

// draw draws the report if something happened, or if it is worth one anyway. Only in the first case
// does the user learn where it is: otherwise the terminal belongs to the command.
func (w *wrapped) draw(u *ui.UI, happened bool) {
	dir := w.Folder.Dir()
	if !happened && !w.worthAReport(dir, u.Now()) {
		return
	}
	r, err := drawn(dir, "", u.Now())
	if err != nil {
		return
	}
	if err := r.Write(dir); err != nil {
		u.NoReport(err)
	} else if happened {
		u.ReportWritten(filepath.Join(dir, report.Page))
	}
}

// inShort returns what is said about a command that ended by itself, without what it or headroom
// has printed already.
func (w *wrapped) inShort(exit *wrap.ExitError, err error) error {
	switch {
	case exit.Memory && w.said.again:
		return fmt.Errorf("%s: %s", exit.How, leftFailure)
	case exit.What != "": // the command has printed its error itself
		return errors.New(exit.What)
	}
	return err
}

// longRun is how long a command must have run for its report to be drawn even if nothing went
// wrong: drawing it takes a fraction of a second, which is too much for a short command.
const longRun = time.Minute

// worthAReport reports whether the report of a command is drawn even if nothing went wrong. That
// is so if the command ran for a long time, or if there is a report already, which would be out of
// date.
func (w *wrapped) worthAReport(dir string, now time.Time) bool {
	_, err := os.Stat(filepath.Join(dir, report.Page))
	return err == nil || now.Sub(w.Begun) >= longRun
}

// goesOn says how to continue the run.
func (w *wrapped) goesOn() string {
	if w.place.Of > 0 {
		return "the same command on every node continues the run"
	}
	if w.Match == nil {
		return "headroom resume cannot continue this command: run it again, from its own checkpoint if it has written one"
	}
	return "headroom resume " + w.Name() + " continues from its newest checkpoint, or from the beginning if there is none"
}

// hint returns what would help next time, or "" if headroom knows of nothing.
func (w *wrapped) hint(exit *wrap.ExitError) string {
	if exit.Hint != "" || w.Match == nil {
		return exit.Hint
	}
	return w.goesOn()
}

// notStarted returns the error for a command that could not be started because of err. It carries
// the exit status that a shell would give, and a hint about what the user probably meant.
func notStarted(c command.Line, err error) error {
	var start *command.StartError
	if !errors.As(err, &start) {
		return err
	}
	return &ui.ChildError{Code: start.Code, Err: err, Hint: meant(c, start.Err)}
}

// neverBegan returns the error for a command whose script or module, called name, Python could not
// open. It carries the command's own exit status.
func neverBegan(c command.Line, name string, code int) error {
	err := &ui.ChildError{Code: code, Err: fmt.Errorf("nothing has run, and no run is kept: Python cannot open %s", name)}
	beside, _ := filepath.Glob(filepath.Join(filepath.Dir(c.From(name)), "*.py")) // without any, there is nothing to suggest
	for i, path := range beside {
		beside[i] = filepath.Base(path)
	}
	if near := spelling.Nearest(filepath.Base(name), beside); near != "" && strings.HasSuffix(name, ".py") {
		err.Hint = fmt.Sprintf("did you mean %s?", filepath.Join(filepath.Dir(name), near))
	}
	return err
}

// meant returns a hint about what the user probably meant by a command that cannot be started
// because of why. It returns "" if there is nothing to guess from.
func meant(c command.Line, why error) string {
	if len(c.Args) == 0 {
		return ""
	}
	if info, err := os.Stat(c.Dir); c.Dir != "" && (err != nil || !info.IsDir()) {
		return fmt.Sprintf("it is to run in %s, which is no folder; dir in the configuration says where", c.Dir)
	}
	switch info, err := os.Stat(c.From(c.Args[0])); {
	case err != nil:
		return meantByWords(c)
	case info.IsDir():
		return ""
	}
	return meantByFile(c, why)
}

// meantByFile is meant for a command whose first word is a file that cannot be started.
func meantByFile(c command.Line, why error) string {
	word := c.Args[0]
	switch {
	case filepath.Ext(word) == ".py":
		return fmt.Sprintf("did you mean python %v?", c)
	case filepath.Ext(word) == ".sh":
		return fmt.Sprintf("did you mean bash %v?", c)
	case !strings.Contains(word, "/"):
		return fmt.Sprintf("./%s is a file here; chmod +x makes it executable", word)
	case errors.Is(why, fs.ErrPermission):
		return fmt.Sprintf("chmod +x %v makes it executable", command.Line{Args: c.Args[:1]})
	case errors.Is(why, fs.ErrNotExist):
		return "its first line names an interpreter that does not exist"
	}
	return ""
}

// meantByWords is meant for a command whose first word is no file.
func meantByWords(c command.Line) string {
	word, rest := c.Args[0], c.Args[1:]
	switch words := strings.Fields(word); {
	case len(words) > 1 && strings.ContainsAny(word, "|&;<>"):
		return fmt.Sprintf("this needs a shell: -- %v", command.Line{Args: []string{"bash", "-o", "pipefail", "-c", strings.Join(c.Args, " ")}})
	case len(words) > 1:
		return fmt.Sprintf("give the words of the command separately, without quotes around the whole command: -- %v", command.Line{Args: append(words, rest...)})
	case !strings.Contains(word, "/"):
		if near := spelling.Nearest(word, c.Programs()); near != "" {
			return fmt.Sprintf("did you mean %v?", command.Line{Args: append([]string{near}, rest...)})
		}
	}
	return ""
}
