// Package ui is what a user sees of headroom: the screen, the lines on it, the progress of a run,
// the lines of --json, and the exit statuses with the errors that carry them. It prints and
// decides nothing; the commands, in the package above it, call it.
//
// The file ui.go holds every line that a user sees while headroom works; help texts
// are next to their flags. The rules:
//
//   - Messages go to stderr, each line with "headroom: " in front. stdout gets
//     the answer of a command (UI.Answer) and JSON, nothing else.
//   - A line starts with a small letter and ends without a full stop. It names
//     the thing, its number, and what the number is compared with.
//   - An error is followed by a hint that names the next step to take, where
//     there is one.
//   - Sentences about memory are not written here: they come from the decision
//     itself (runs.Entry.Text), so that the terminal, the journal and the
//     report say the same.
//   - -q leaves only errors and warnings.
//   - A problem is yellow, and what was done about it is cyan. A good end is green, and
//     the error that ends the command is red. Each is on a line of its own. Nothing
//     depends on a colour: marks and the word "warning" say the same.
package ui

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/term"

	"headroom/configs"
	"headroom/device"
	"headroom/harness"
	"headroom/memory"
	"headroom/recovery"
	"headroom/report"
	"headroom/runs"
	"headroom/wrap"
	"headroom/wrap/rewrite"
)

// UI is where a command's messages and answers go.
type UI struct {
	Out      io.Writer        // stdout
	OutShows bool             // stdout is a terminal
	Screen   *Screen          // stderr
	Quiet    bool             // --quiet
	Now      func() time.Time // the clock
	Message  string           // the file to which LeaveMessage adds; "" if there is none

	probed []string // the lines of the search that is in progress
	newest newest
}

// New returns the UI of a process with the given stdout and stderr. env looks up variables of its
// environment.
func New(stdout, stderr *os.File, env func(string) (string, bool)) *UI {
	return &UI{Out: stdout, Screen: newScreen(stderr, env), Now: time.Now, OutShows: term.IsTerminal(int(stdout.Fd()))}
}

// marks stand in front of lines, and say the same as the colours. A warning has no mark,
// because it begins with the word "warning".
var marks = map[string]string{Red: "! ", Yellow: "! ", Cyan: "> "}

const isWarning = "warning: "

// Line prints text in the given colour, each of its lines with "headroom: " in front.
func (u *UI) Line(colour, text string) {
	lead := "headroom: "
	if !strings.HasPrefix(text, isWarning) {
		lead += marks[colour]
	}
	for l := range strings.Lines(text) {
		l = lead + Printable(strings.TrimSuffix(l, "\n"))
		u.newest.add(strings.TrimPrefix(l, "headroom: "))
		if u.Screen.Live { // in a log a line stays one line
			l = folded(l, u.Screen.Width(), len(lead))
		}
		u.Screen.print(colour, l)
	}
}

// Say prints a message that the user need not read. --quiet turns it off.
func (u *UI) Say(format string, args ...any) {
	if !u.Quiet {
		u.Line(Plain, fmt.Sprintf(format, args...))
	}
}

// done prints what was done about a problem. --quiet turns it off.
func (u *UI) done(text string) {
	if !u.Quiet {
		u.Line(Cyan, text)
	}
}

// Warn prints a warning, also with --quiet.
func (u *UI) Warn(format string, args ...any) {
	u.Line(Yellow, isWarning+fmt.Sprintf(format, args...))
}

// Hint prints the next step to take, unless text is "".
func (u *UI) Hint(text string) {
	if text != "" {
		u.Line(Plain, "hint: "+text)
	}
}

// NotTold warns that a receiver of messages about a run could not be told, and why.
func (u *UI) NotTold(receiver string, err error) {
	u.Warn("%s was not told about the run: %v; the run does not depend on it", receiver, err)
}

// errStdout is wrapped by errors that say that an answer could not be printed.
var errStdout = errors.New("write to standard output")

// Answer prints to stdout what a command was asked for.
func (u *UI) Answer(text string) error {
	if _, err := io.WriteString(u.Out, text+"\n"); err != nil {
		return fmt.Errorf("%w: %w", errStdout, err)
	}
	return nil
}

// AnswerJSON prints to stdout what a command was asked for, as one line of JSON.
func (u *UI) AnswerJSON(v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("write to standard output: %w", err)
	}
	return u.Answer(string(text))
}

// Failed prints the error with which a command ends, and a hint about what to do next. It
// prints nothing if err is nil, or if the user has already been told.
func (u *UI) Failed(err error) {
	child := (*ChildError)(nil)
	if err == nil || IsInterrupted(err) || errors.As(err, &child) && child.Quiet { // the user has been told
		return
	}
	u.Screen.Show("")
	u.Line(Red, err.Error())
	u.Hint(HintFor(err))
}

// HintFor returns the next step to take after err, or "" if none is known.
func HintFor(err error) string {
	var usage *UsageError
	var gave *harness.GaveUpError
	var oom *memory.OutOfMemoryError
	var unsaved *harness.CheckpointError
	var infinite *harness.NotFiniteError
	var lost *harness.DeviceGoneError
	var gone *device.GoneError
	var child *ChildError
	var untriable *rewrite.UntriableError
	switch {
	case errors.As(err, &child) && child.Hint != "":
		return child.Hint
	case errors.As(err, &lost):
		return lost.Decision.Hint
	case errors.As(err, &gave):
		return gave.Decision.Hint
	case errors.As(err, &usage) && usage.Hint != "":
		return usage.Hint
	case errors.As(err, &untriable):
		return untriable.Hint
	case errors.As(err, &oom):
		return "a smaller model, an optimizer with less state, or a device with more memory"
	case errors.As(err, &gone):
		return "look for Xid errors in dmesg, and for errors and high temperatures in nvidia-smi -q; a new process may find the device healthy again"
	case errors.As(err, &infinite):
		return "lower optimizer.lr or set optimizer.clip, then run again with --fresh"
	case errors.As(err, &unsaved):
		return "" // the error itself says what to do
	case errors.Is(err, syscall.ENOSPC) && !errors.Is(err, errStdout):
		return "make room on that disk, then run the same command again"
	}
	return ""
}

// Entry prints what happened in a run, in the journal's own words. It leaves out entries that
// other lines already report.
func (u *UI) Entry(e runs.Entry) {
	if Ending(e.Kind) || e.Final {
		return
	}
	before := u.probed
	u.probed = nil
	switch e.Kind {
	case runs.KindDecision:
		if e.Decision == nil || e.Decision.Remedy != recovery.Stop { // the message at the end of the command says the same
			u.done(e.Text)
		}
	case runs.KindRemedy:
		u.done(e.Text)
	case runs.KindOOM, runs.KindSurvived, runs.KindRefused:
		u.failure(e)
	case runs.KindCheckpoint, runs.KindDevice:
	case runs.KindGone:
		if u.Quiet { // otherwise the entry about the decision says it
			u.Warn("the device was lost: %s", e.Text)
		}
	case runs.KindCheckpointFailed, runs.KindReleased, runs.KindDamaged, runs.KindMissing, runs.KindJournalFailed, runs.KindFault, runs.KindWarning:
		u.Warn("%s", e.Text)
	case runs.KindProbe: // a size that is tried again, for longer or at the end, gets no second line
		if u.probed = append(before, e.Text); !slices.Contains(before, e.Text) {
			u.Say("  %s", e.Text)
		}
	default:
		u.Say("%s", e.Text)
	}
}

// failure prints how memory ran out, and what was done about it in place, if anything was.
func (u *UI) failure(e runs.Entry) {
	wrong, done := e.Text, ""
	if e.Kind == runs.KindOOM && e.Verdict != nil {
		wrong += "; verdict: " + string(e.Verdict.Cause)
	}
	if e.Kind == runs.KindSurvived { // one line for what went wrong, another for what was done
		wrong = e.Wrong()
		if how := e.Done(); how != "" {
			done = "survived in place: " + how
		}
	}
	if !u.Quiet {
		u.Line(Yellow, wrong)
	}
	if done != "" {
		u.done(done)
	}
}

// Ending reports whether the message at the end of the command says the same as an entry of
// kind k.
func Ending(k runs.Kind) bool {
	return k == runs.KindDone || k == runs.KindFailed || k == runs.KindInterrupted
}

// Finished prints the last line about a run that is finished.
func (u *UI) Finished(r harness.Result) {
	if u.Quiet {
		return
	}
	text := "done: " + Plural(r.Steps, "step")
	if r.Resumed > 0 {
		text += fmt.Sprintf(" (%d of them before this command)", r.Resumed)
	}
	text += fmt.Sprintf(", loss %.3f", r.Last.Loss)
	if r.AllFailures > 0 {
		text += fmt.Sprintf(", %s survived", Plural(r.AllFailures, "out-of-memory failure"))
	}
	if r.DeviceGone > 0 {
		text += fmt.Sprintf(", device lost %s", Plural(r.DeviceGone, "time"))
	}
	u.Line(Green, text)
}

// Survived prints the last line about a wrapped command that would not have finished without
// headroom.
func (u *UI) Survived(r harness.Result) {
	if u.Quiet {
		return
	}
	text := fmt.Sprintf("done: %s survived", Plural(r.Failures, "out-of-memory failure"))
	switch {
	case r.InPlace == r.Failures:
		text += " in place"
	case r.InPlace > 0:
		text += fmt.Sprintf(", %d of them in place", r.InPlace)
	}
	if r.InPlace < r.Failures {
		text += fmt.Sprintf("; the plan at the end was %v", r.Plan)
	}
	u.Line(Green, text)
}

// AlreadyFinished says that there is nothing left to do in the run in dir.
func (u *UI) AlreadyFinished(name, dir string, steps int) {
	u.Say("%s is finished: all %s are done; its report is %s", name, Plural(steps, "step"), filepath.Join(dir, report.Page))
	if !u.Quiet {
		u.Hint("--again sets it aside and starts over, --name starts another run")
	}
}

// Interrupted says where the same command will continue when it is given again: at the
// step just saved, or else at the newest checkpoint if one is kept, or else at step 0.
func (u *UI) Interrupted(r harness.Result, total int, saved, kept bool) {
	u.Screen.Show("")
	how, from := "not saved", "step 0"
	if saved {
		how, from = "and saved", "there"
	} else if kept {
		from = "the newest checkpoint"
	}
	u.Line(Yellow, fmt.Sprintf("interrupted after step %d of %d, %s; the same command continues from %s", r.Steps, total, how, from))
}

// Stopped prints the last line about a wrapped command that was asked to stop.
func (u *UI) Stopped(status int, goesOn string) {
	u.Line(Yellow, fmt.Sprintf("interrupted, status %d; %s", status, goesOn))
}

// SetAside says where the run has gone that was in the folder from.
func (u *UI) SetAside(from, to string) { u.Say("the run that was in %s is now in %s", from, to) }

// Passed returns a function that says why device.kind auto does not use a better kind of
// device. The function says so once for each kind.
func (u *UI) Passed() func(kind string, why error) {
	told := map[string]bool{}
	return func(kind string, why error) {
		if !told[kind] {
			told[kind] = true
			u.Say("training without %s: %v", kind, why)
		}
	}
}

// ReportWritten says where the report is.
func (u *UI) ReportWritten(path string) { u.Say("report: %s", path) }

// NoReport warns that there is no report. That is not an error, because the run is
// complete without one.
func (u *UI) NoReport(err error) { u.Warn("no report: %v", err) }

// noMessage warns that LeaveMessage failed, which changes no status.
func (u *UI) noMessage(err error) { u.Warn("HEADROOM_TERMINATION_LOG: %v", err) }

// noReader warns that the reader of the JSON lines has gone.
func (u *UI) noReader(err error) { u.Warn("%v; the run continues without this output", err) }

// StartOne is the hint to a user who has no runs yet.
const StartOne = "headroom run -- COMMAND starts one"

// NoRuns says that there is no run to show.
func (u *UI) NoRuns() {
	u.Say("there are no runs in %s", configs.RunsDir())
	if !u.Quiet {
		u.Hint(StartOne)
	}
}

// Squeezed says that a process simulated by device.squeeze takes memory, or gives it back.
func (u *UI) Squeezed(s configs.Squeeze, begins bool) {
	text := fmt.Sprintf("simulating another process that takes %v from step %d to %d", s.Take, s.From, s.To)
	if !begins {
		text = fmt.Sprintf("the other process is gone, and its %v is free again", s.Take)
	}
	u.Say("device.squeeze: %s", text)
}

// ShortSchedule warns about a run that was made longer, but whose learning rate schedule
// was not: the added steps all use the lowest learning rate, and learn little.
func (u *UI) ShortSchedule(c *configs.Config) {
	u.Warn("schedule.steps is still %d, as it was when this run began, so every later step, up to %d, uses the learning rate schedule.min (%g); set schedule.steps=%[1]d if that is intended, or use --fresh to start over with a schedule over all %[2]d steps",
		c.Schedule.Steps, c.Train.Steps, c.Schedule.Min)
}

// Asked tells the user what headroom will do in response to a signal. training says
// whether training has begun, and again says whether this is the second signal.
func (u *UI) Asked(training, again bool) {
	text := "stopping after this step and saving a checkpoint; a second signal stops at once"
	if again {
		text = "stopping now: the steps since the newest checkpoint will be repeated"
	} else if !training {
		text = "interrupted while the run was being opened; the same command opens it again"
	}
	u.Line(Yellow, text)
}

// OtherRun returns the usage error for a folder that holds a different run, with the
// differences.
func OtherRun(cfg *configs.Config, different []configs.Difference) error {
	text := fmt.Sprintf("%s holds another run:", cfg.RunDir())
	for _, d := range different {
		text += fmt.Sprintf("\n  %s: %s → %s", d.Key, d.Old, d.New)
	}
	return Usagef("--name NAME starts another run beside it, --fresh sets it aside and starts over", "%s", text)
}

// ConfigHint returns the hint to a user who named no configuration for a headroom command, or
// too many; named is their number. doctor takes no command, but explain checks one.
func ConfigHint(command string, named int) string {
	if command == "doctor" {
		command = "explain"
	}
	if named > 1 {
		return "name one configuration; your own command goes after --, as in headroom " + command + " -- python train.py"
	}
	return "your own training command goes after --, as in headroom " + command + " -- python train.py; presets: " + strings.Join(configs.Presets(), ", ")
}

// Timed reports the speed of a plan that a search has timed.
func (u *UI) Timed(t harness.Timing) {
	u.Say("  micro-batch %d × %d: %s", t.Micro, t.Accumulation, Rate(t.PerSecond))
}

// FindStops answers the first signal during a search; again says that this is a later one.
func (u *UI) FindStops(again bool) {
	if !again {
		u.Line(Yellow, "stopping; nothing is kept")
	}
}

// LooksAmong announces a search that runs trials of a command.
func (u *UI) LooksAmong(o wrap.FindOptions) {
	u.Say("trying %s that keep the effective batch at %d, to find the largest that fits; each trial runs the command briefly and writes into a temporary folder",
		Plural(len(o.Sizes), "micro-batch size"), o.Asked.Effective)
}

// Tried reports the outcome of a trial.
func (u *UI) Tried(t wrap.Tried) { u.Say("  %s (%.0f s)", t.Text, t.Seconds) }

// FindsMicro announces a search before a run.
func (u *UI) FindsMicro() {
	u.Say("--micro auto: finding how many rows fit at once: the command is started once more, makes its first step, and is ended")
}

// FoundMicro says what a search before a run has found, with so many trials and in so much time, or that the run in the folder from
// had found it.
func (u *UI) FoundMicro(found runs.Found, from string, tried int, took time.Duration) {
	if from != "" {
		u.Say("--micro auto: %v (found by %s)", found, from)
	} else {
		u.Say("--micro auto: %v (%s, %.0f s)", found, Plural(tried, "trial"), took.Seconds())
	}
}

// LooksInside announces a search in one process of the command.
func (u *UI) LooksInside() {
	u.Say("the command makes its first step; then that step is tried on other numbers of rows, and the command is ended")
}

// TriedRows reports the outcome of a step on so many rows, within so much memory; 0 is as much as there is.
func (u *UI) TriedRows(rows int, within memory.Bytes, fits bool, peak memory.Bytes, seconds float64) {
	into := ""
	if within > 0 {
		into = fmt.Sprintf(" into %v", within)
	}
	if fits {
		u.Say("  %d rows fit%s: %v (%.1f s)", rows, into, peak, seconds)
	} else {
		u.Say("  %d rows do not fit%s", rows, into)
	}
}
