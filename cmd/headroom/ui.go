package main

// This file holds every line that a user sees while headroom works; help texts
// are next to their flags. The rules:
//
//   - Messages go to stderr, each line with "headroom: " in front. stdout gets
//     the answer of a command (u.answer) and JSON, nothing else.
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
	"headroom/wrap/child"
	"headroom/wrap/command"
	"headroom/wrap/rewrite"
)

// ui is where a command's messages and answers go.
type ui struct {
	out    io.Writer // stdout
	screen *screen   // stderr
	quiet  bool
	now    func() time.Time

	outShows bool     // stdout is a terminal
	probed   []string // the lines of the search that is in progress
}

func newUI(stdout, stderr *os.File, env func(string) (string, bool)) *ui {
	return &ui{out: stdout, screen: newScreen(stderr, env), now: time.Now, outShows: term.IsTerminal(int(stdout.Fd()))}
}

// marks stand in front of lines, and say the same as the colours. A warning has no mark,
// because it begins with the word "warning".
var marks = map[string]string{red: "! ", yellow: "! ", cyan: "> "}

const isWarning = "warning: "

func (u *ui) line(colour, text string) {
	lead := "headroom: "
	if !strings.HasPrefix(text, isWarning) {
		lead += marks[colour]
	}
	for l := range strings.Lines(text) {
		l = lead + printable(strings.TrimSuffix(l, "\n"))
		if u.screen.live { // in a log a line stays one line
			l = folded(l, u.screen.width(), len(lead))
		}
		u.screen.print(colour, l)
	}
}

// say prints a message that the user need not read. --quiet turns it off.
func (u *ui) say(format string, args ...any) {
	if !u.quiet {
		u.line(plain, fmt.Sprintf(format, args...))
	}
}

// done prints what was done about a problem. --quiet turns it off.
func (u *ui) done(text string) {
	if !u.quiet {
		u.line(cyan, text)
	}
}

func (u *ui) warn(format string, args ...any) {
	u.line(yellow, isWarning+fmt.Sprintf(format, args...))
}

func (u *ui) hint(text string) {
	if text != "" {
		u.line(plain, "hint: "+text)
	}
}

// errStdout is wrapped by errors that say that an answer could not be printed.
var errStdout = errors.New("write to standard output")

// answer prints to stdout what a command was asked for.
func (u *ui) answer(text string) error {
	if _, err := io.WriteString(u.out, text+"\n"); err != nil {
		return fmt.Errorf("%w: %w", errStdout, err)
	}
	return nil
}

func (u *ui) answerJSON(v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("write to standard output: %w", err)
	}
	return u.answer(string(text))
}

// failed prints the error with which a command ends, and a hint about what to do next. It
// prints nothing if err is nil, or if the user has already been told.
func (u *ui) failed(err error) {
	child := (*childError)(nil)
	if err == nil || isInterrupted(err) || errors.As(err, &child) && child.quiet { // the user has been told
		return
	}
	u.screen.show("")
	u.line(red, err.Error())
	u.hint(hintFor(err))
}

func hintFor(err error) string {
	var usage *usageError
	var gave *harness.GaveUpError
	var oom *memory.OutOfMemoryError
	var unsaved *harness.CheckpointError
	var infinite *harness.NotFiniteError
	var lost *harness.DeviceGoneError
	var gone *device.GoneError
	var child *childError
	var untriable *rewrite.UntriableError
	switch {
	case errors.As(err, &child) && child.hint != "":
		return child.hint
	case errors.As(err, &lost):
		return lost.Decision.Hint
	case errors.As(err, &gave):
		return gave.Decision.Hint
	case errors.As(err, &usage) && usage.hint != "":
		return usage.hint
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

// entry prints what happened in a run, in the journal's own words. It leaves out entries that
// other lines already report.
func (u *ui) entry(e runs.Entry) {
	if ending(e.Kind) || e.Final {
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
	case runs.KindSurvived: // one line for what went wrong, another for what was done
		wrong, how, told := e.InPlace()
		if !u.quiet {
			u.line(yellow, wrong)
		}
		if told {
			u.done("survived in place: " + how)
		}
	case runs.KindRefused:
		if !u.quiet {
			u.line(yellow, e.Text)
		}
	case runs.KindCheckpoint, runs.KindDevice:
	case runs.KindGone:
		if u.quiet { // otherwise the entry about the decision says it
			u.warn("the device was lost: %s", e.Text)
		}
	case runs.KindCheckpointFailed, runs.KindReleased, runs.KindDamaged, runs.KindMissing, runs.KindJournalFailed, runs.KindFault, runs.KindWarning:
		u.warn("%s", e.Text)
	case runs.KindProbe: // a size that is tried again, for longer or at the end, gets no second line
		if u.probed = append(before, e.Text); !slices.Contains(before, e.Text) {
			u.say("  %s", e.Text)
		}
	case runs.KindOOM:
		text := e.Text
		if e.Verdict != nil {
			text += "; verdict: " + string(e.Verdict.Cause)
		}
		if !u.quiet {
			u.line(yellow, text)
		}
	default:
		u.say("%s", e.Text)
	}
}

// ending reports whether the message at the end of the command says the same as an entry of
// kind k.
func ending(k runs.Kind) bool {
	return k == runs.KindDone || k == runs.KindFailed || k == runs.KindInterrupted
}

// finished prints the last line about a run that is finished.
func (u *ui) finished(r harness.Result) {
	if u.quiet {
		return
	}
	text := "done: " + plural(r.Steps, "step")
	if r.Resumed > 0 {
		text += fmt.Sprintf(" (%d of them before this command)", r.Resumed)
	}
	text += fmt.Sprintf(", loss %.3f", r.Last.Loss)
	if r.AllFailures > 0 {
		text += fmt.Sprintf(", %s survived", plural(r.AllFailures, "out-of-memory failure"))
	}
	if r.DeviceGone > 0 {
		text += fmt.Sprintf(", device lost %s", plural(r.DeviceGone, "time"))
	}
	u.line(green, text)
}

// survived prints the last line about a wrapped command that would not have finished without
// headroom.
func (u *ui) survived(r harness.Result) {
	if u.quiet {
		return
	}
	text := fmt.Sprintf("done: %s survived", plural(r.Failures, "out-of-memory failure"))
	switch {
	case r.InPlace == r.Failures:
		text += " in place"
	case r.InPlace > 0:
		text += fmt.Sprintf(", %d of them in place", r.InPlace)
	}
	if r.InPlace < r.Failures {
		text += fmt.Sprintf("; the plan at the end was %v", r.Plan)
	}
	u.line(green, text)
}

func (u *ui) alreadyFinished(name, dir string, steps int) {
	u.say("%s is finished: all %s are done; its report is %s", name, plural(steps, "step"), filepath.Join(dir, report.Page))
	if !u.quiet {
		u.hint("--again sets it aside and starts over, --name starts another run")
	}
}

// interrupted says where the same command will continue when it is given again: at the
// step just saved, or else at the newest checkpoint if one is kept, or else at step 0.
func (u *ui) interrupted(r harness.Result, total int, saved, kept bool) {
	u.screen.show("")
	how, from := "not saved", "step 0"
	if saved {
		how, from = "and saved", "there"
	} else if kept {
		from = "the newest checkpoint"
	}
	u.line(yellow, fmt.Sprintf("interrupted after step %d of %d, %s; the same command continues from %s", r.Steps, total, how, from))
}

// stopped prints the last line about a wrapped command that was asked to stop.
func (u *ui) stopped(status int, goesOn string) {
	u.line(yellow, fmt.Sprintf("interrupted, status %d; %s", status, goesOn))
}

func (u *ui) setAside(from, to string) { u.say("the run that was in %s is now in %s", from, to) }

// passed returns a function that says why device.kind auto does not use a better kind of
// device. The function says so once for each kind.
func (u *ui) passed() func(kind string, why error) {
	told := map[string]bool{}
	return func(kind string, why error) {
		if !told[kind] {
			told[kind] = true
			u.say("training without %s: %v", kind, why)
		}
	}
}

func (u *ui) reportWritten(path string) { u.say("report: %s", path) }

// noReport warns that there is no report. That is not an error, because the run is
// complete without one.
func (u *ui) noReport(err error) { u.warn("no report: %v", err) }

// noReader warns that the reader of the JSON lines has gone.
func (u *ui) noReader(err error) { u.warn("%v; the run continues without this output", err) }

// startOne is the hint to a user who has no runs yet.
const startOne = "headroom run -- COMMAND starts one"

func (u *ui) noRuns() {
	u.say("there are no runs in %s", configs.RunsDir())
	if !u.quiet {
		u.hint(startOne)
	}
}

// squeezed says that a process simulated by device.squeeze takes memory, or gives it back.
func (u *ui) squeezed(s configs.Squeeze, begins bool) {
	text := fmt.Sprintf("simulating another process that takes %v from step %d to %d", s.Take, s.From, s.To)
	if !begins {
		text = fmt.Sprintf("the other process is gone, and its %v is free again", s.Take)
	}
	u.say("device.squeeze: %s", text)
}

// shortSchedule warns about a run that was made longer, but whose learning rate schedule
// was not: the added steps all use the lowest learning rate, and learn little.
func (u *ui) shortSchedule(c *configs.Config) {
	u.warn("schedule.steps is still %d, as it was when this run began, so every later step, up to %d, uses the learning rate schedule.min (%g); set schedule.steps=%[1]d if that is intended, or use --fresh to start over with a schedule over all %[2]d steps",
		c.Schedule.Steps, c.Train.Steps, c.Schedule.Min)
}

// asked tells the user what headroom will do in response to a signal. training says
// whether training has begun, and again says whether this is the second signal.
func (u *ui) asked(training, again bool) {
	text := "stopping after this step and saving a checkpoint; a second signal stops at once"
	if again {
		text = "stopping now: the steps since the newest checkpoint will be repeated"
	} else if !training {
		text = "interrupted while the run was being opened; the same command opens it again"
	}
	u.line(yellow, text)
}

// otherRun returns the usage error for a folder that holds a different run, with the
// differences.
func otherRun(cfg *configs.Config, different []configs.Difference) error {
	text := fmt.Sprintf("%s holds another run:", cfg.RunDir())
	for _, d := range different {
		text += fmt.Sprintf("\n  %s: %s → %s", d.Key, d.Old, d.New)
	}
	return usagef("--name NAME starts another run beside it, --fresh sets it aside and starts over", "%s", text)
}

// word returns what names the run on a command line: its name, or else its folder.
func (s standing) word() string {
	if filepath.Join(configs.RunsDir(), s.Name) == filepath.Clean(s.Folder) {
		return s.Name
	}
	return s.Folder
}

// goesOn says how to continue a run whose process is gone.
func (s standing) goesOn() string {
	if configs.IsCommand(filepath.Join(s.Folder, "run.yaml")) {
		if _, err := continuable(s.Folder, false); err != nil {
			return "headroom does not know how to continue its command: start it again"
		}
		return fmt.Sprintf("headroom resume %s starts its command again from the newest checkpoint", s.word())
	}
	return "rerunning the command that started it continues from the newest checkpoint"
}

// staleHint says what to do about the first run whose command goes on without headroom, or else
// about the first run that crashed or, if none did, about the first
// run whose process is gone. It returns "" if there is no such run.
func staleHint(all []standing) string {
	for _, s := range all {
		if s.Lives != nil {
			return fmt.Sprintf("%s is stale: its headroom was killed, but its command is still running: %s; headroom resume %s continues once it has ended", s.Name, child.LeftText([]child.Left{*s.Lives}), s.word())
		}
	}
	for _, s := range all {
		if s.Crash != nil {
			return fmt.Sprintf("%s crashed: %s; the trace is in %s, and %s", s.Name, s.Crash.Error, s.Crash.Trace, s.goesOn())
		}
	}
	for _, s := range all {
		if s.State == runs.StateStale {
			return fmt.Sprintf("%s is stale: its process is gone, and %s", s.Name, s.goesOn())
		}
	}
	return ""
}

// statusHint returns what to do next: about a run that crashed or is stale, if there is one, or
// else about the run that the user named.
func statusHint(all []standing, named bool) string {
	if hint := staleHint(all); hint != "" || !named || len(all) != 1 {
		return hint
	}
	s := all[0]
	switch s.State {
	case runs.StateInterrupted:
		return fmt.Sprintf("%s was interrupted, and %s", s.Name, s.goesOn())
	case runs.StateDone, runs.StateFailed:
		return fmt.Sprintf("headroom report %s --open shows what happened, and what to change next", s.word())
	}
	return ""
}

// configHint returns the hint to a user who named no configuration for a headroom command, or
// too many; named is their number. doctor takes no command, but explain checks one.
func configHint(command string, named int) string {
	if command == "doctor" {
		command = "explain"
	}
	if named > 1 {
		return "name one configuration; your own command goes after --, as in headroom " + command + " -- python train.py"
	}
	return "your own training command goes after --, as in headroom " + command + " -- python train.py; presets: " + strings.Join(configs.Presets(), ", ")
}

func (u *ui) timed(t harness.Timing) {
	u.say("  micro-batch %d × %d: %s", t.Micro, t.Accumulation, rate(t.PerSecond))
}

func (u *ui) findStops(again bool) {
	if !again {
		u.line(yellow, "stopping; nothing is kept")
	}
}

// looksAmong announces a search that runs trials of a command.
func (u *ui) looksAmong(o wrap.FindOptions) {
	u.say("trying %s that keep the effective batch at %d, to find the largest that fits; each trial runs the command briefly and writes into a temporary folder",
		plural(len(o.Sizes), "micro-batch size"), o.Asked.Effective)
}

// tried reports the outcome of a trial.
func (u *ui) tried(t wrap.Tried) { u.say("  %s (%.0f s)", t.Text, t.Seconds) }

// trialFailed returns the error that the command find is to end with, given err, which ended its
// search. If a trial failed for a reason other than memory, the returned error carries the trial's
// exit status, and trialFailed first prints the last output of the trial.
func (u *ui) trialFailed(c command.Line, err error) error {
	var failed *wrap.TrialError
	switch {
	case errors.As(err, &failed):
		for line := range strings.Lines(failed.Last) {
			u.line(plain, "  | "+strings.TrimSuffix(line, "\n"))
		}
		return &childError{code: max(1, failed.Code), err: err, hint: "check whether the command runs without headroom; the micro-batch is not the cause"}
	case errors.As(err, new(*command.StartError)):
		return notStarted(c, err)
	}
	return err
}
