package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"headroom/cmd/headroom/ui"
	"headroom/configs"
	"headroom/harness"
	"headroom/memory"
	"headroom/recovery"
	"headroom/report"
	"headroom/runs"
	"headroom/wrap"
	"headroom/wrap/checkpoints"
	"headroom/wrap/child"
	"headroom/wrap/command"
	"headroom/wrap/exits"
	"headroom/wrap/rewrite"
)

// wrapAction runs the user's command. As long as nothing goes wrong it prints nothing:
// the terminal belongs to the command.
func wrapAction(u *ui.UI, c *cli.Context, r request) error {
	u.Quiet = c.Bool("quiet")
	if err := notForCommands(c, "a run of a configuration", append(configFlags(), configRunFlags()...)); err != nil {
		return err
	}
	live, err := openWeb(c)
	if err != nil {
		return err
	}
	defer live.close()
	w, err := recognised(r)
	if err != nil {
		return err
	}
	w.verbose = c.Bool("verbose")
	if c.Bool("dry-run") {
		return u.Answer(explained(w, u.Now()).brief())
	}
	if err := w.Command.Startable(); err != nil { // checked first, so that no folder is made for a mistyped command
		return notStarted(w.Command, err)
	}
	folder, name, err := w.folder(r.Name)
	if err != nil {
		return err
	}
	w.made = true
	live.serve(u, folder.Dir())
	return w.lead(c.Context, u, folder, name)
}

// wrapped is a command together with what headroom knows about it.
type wrapped struct {
	wrap.Wrapped
	request request
	policy  recovery.Policy
	seen    *rewrite.Match // what the command was recognised as, even if Match is nil
	why     error          // why Match is nil; nil if there is a Match
	before  []runs.Entry   // journal of the run's earlier processes
	made    bool           // the run's folder is new
	verbose bool
	refused *memory.OutOfMemoryError // the newest failure in this attempt that was left to the command's own code; nil if there is none
	again   bool                     // the attempt ended with the failure in refused, which has been reported
	never   string                   // the script or module that Python could not open, so that nothing has run; else ""
}

// recognised finds out what is known about the command of r. It is not an error if nothing
// is known: then the command is run as it is, and never changed.
func recognised(r request) (*wrapped, error) {
	w := &wrapped{request: r, policy: recovery.Policy{Relaunches: 3, Waits: 10}}
	w.Command, w.Trust = command.Line{Args: r.Args, Env: os.Environ(), Dir: r.Dir}, r.Trust
	w.Hang, w.Restart, w.Leave, w.Free = r.Hang, r.RestartHung, r.RestartLeaking, r.Free
	profiles, name, err := profilesFor(r.Profile)
	if err != nil {
		return nil, ui.AsUsage(err)
	}
	w.Match, w.why = rewrite.Recognise(w.Command, profiles, rewrite.Given{Files: os.DirFS("/"), Profile: name, Knobs: r.Knobs, World: r.World})
	if w.seen = w.Match; r.WatchOnly {
		w.Match, w.why = nil, errors.New("--watch-only was given")
		return w, nil
	}
	_, fallbacks := r.allowances()
	var asked rewrite.Asked
	if w.why == nil {
		asked, w.why = rewrite.Asks(w.Match)
	}
	if w.why != nil {
		w.Match = nil
		switch { // if the user said how to read the command, that was wrong: an error
		case len(r.Knobs) > 0 || r.Profile != "":
			return nil, ui.AsUsage(r.placed(w.why))
		case len(fallbacks) > 0:
			return nil, ui.Usagef(workerAllowances(), "--allow %s: not known, unless a profile names it, and no profile is known for this command: %v", fallbacks[0], w.why)
		}
		return w, nil
	}
	w.Asked = asked.Plan
	w.policy.Host, w.policy.Recompute, err = rewrite.Fallbacks(w.Match, fallbacks)
	w.policy.Able = recovery.Able{Recompute: w.policy.Recompute, Eval: w.Asked.Eval > 0}
	if err != nil {
		err = &ui.UsageError{Err: err, Hint: workerAllowances()}
	}
	return w, err
}

// onlyOfNames returns s with a dash in place of each sequence of characters that are not allowed
// in names.
func onlyOfNames(s string) string {
	var b strings.Builder
	replaced := false
	for _, r := range s {
		fits := configs.IsName("a" + string(r))
		if fits {
			b.WriteRune(r)
		} else if !replaced {
			b.WriteByte('-')
		}
		replaced = !fits
	}
	return b.String()
}

// nameFor returns the name for a run of the command with the given words: the name of its Python
// script, or else of its program, followed by "-run".
func nameFor(words []string) string {
	name := filepath.Base(words[0])
	for _, w := range words {
		if strings.HasSuffix(w, ".py") {
			name = strings.TrimSuffix(filepath.Base(w), ".py")
			break
		}
	}
	return cmp.Or(strings.TrimLeft(onlyOfNames(name), ".-"), "command") + "-run"
}

// folder creates a new folder for the run, and returns it with the run's name. The same command
// given again is a new run, even while the old one is in progress. If asked is not "", it is the
// name that the user asks for, and no run may have it yet.
func (w *wrapped) folder(asked string) (*runs.Folder, string, error) {
	if asked != "" && !configs.IsName(asked) {
		return nil, "", ui.Usagef("", "--name %s: not a valid name for a folder; allowed: %s", asked, configs.NamesAllowed)
	}
	dir := configs.RunsDir()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, "", ui.Usagef("set HEADROOM_RUNS_DIR to a folder that you may write to", "create the runs folder: %v", err)
	}
	base := cmp.Or(asked, nameFor(w.Command.Args))
	name := base
	for n := 1; ; {
		err := os.Mkdir(filepath.Join(dir, name), 0o755) // the process that makes the folder has the name
		if err == nil {
			break
		}
		if !errors.Is(err, os.ErrExist) {
			return nil, "", ui.AsUsage(fmt.Errorf("create the run's folder: %w", err))
		}
		if asked != "" {
			return nil, "", ui.Usagef("give a different --name, or none", "there is already a run %s%s", filepath.Join(dir, name), inUse(filepath.Join(dir, name)))
		}
		n = max(n, newestNumber(dir, base)) + 1
		name = fmt.Sprintf("%s-%d", base, n)
	}
	folder, err := w.begun(filepath.Join(dir, name))
	if errors.As(err, new(*runs.LockedError)) {
		return nil, "", ui.Usagef("give a different --name, or none", "%w", err)
	}
	if err != nil { // nothing was started, and so nothing of it is left behind
		for _, made := range []string{"run.yaml", "secrets.json", "checkpoints", "logs", "journal.jsonl", "metrics.jsonl", "lock", ""} {
			_ = os.Remove(filepath.Join(dir, name, made)) // removes no folder with anything in it
		}
		return nil, "", ui.Usagef("make room, or set HEADROOM_RUNS_DIR to a folder on another disk", "%w", err)
	}
	return folder, name, nil
}

// begun opens the new folder of the run and writes the command into it.
func (w *wrapped) begun(path string) (*runs.Folder, error) {
	folder, err := runs.Open(path)
	if err != nil {
		return nil, err
	}
	kept := w.request.Command
	kept.Name = "" // the folder has the name; running this file makes another run
	kept.Args = w.Command.Masked()
	text, err := kept.YAML()
	if err == nil {
		err = errors.Join(folder.KeepSecrets(w.Command.Args, kept.Args), folder.FirstConfig(text))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("write run.yaml: %w", err), folder.Close())
	}
	return folder, nil
}

// newestNumber returns the highest N among the folders base-N in dir, or 1 if there is none.
// After hundreds of runs, trying one number after another would cost a millisecond per start.
func newestNumber(dir, base string) int {
	newest := 1
	folder, err := os.Open(dir)
	if err != nil {
		return newest
	}
	defer func() { _ = folder.Close() }()
	names, _ := folder.Readdirnames(-1) // if there is an error, the names that could be read
	for _, name := range names {
		if number, ok := strings.CutPrefix(name, base+"-"); ok {
			if n, err := strconv.Atoi(number); err == nil {
				newest = max(newest, n)
			}
		}
	}
	return newest
}

// inUse says which process is working in a run's folder. It returns "" if none is.
func inUse(dir string) string {
	s, err := runs.ReadStatus(dir)
	switch {
	case err != nil:
		return ""
	case s.State == runs.StateRunning:
		return fmt.Sprintf(", and process %d is working in it", s.PID)
	}
	if living := child.Living(dir, s); living != nil {
		return ", and its command is still running: " + child.LeftText([]child.Left{*living})
	}
	return ""
}

// rival returns an error if the command of another run, whose headroom was killed, still runs and
// keeps its checkpoints in the folder place. No claim tells of such a command, since claims end
// with headroom.
func rival(dir, place string) error {
	if place == "" {
		return nil
	}
	for _, name := range runNames() {
		other := filepath.Join(configs.RunsDir(), name)
		if filepath.Clean(other) == filepath.Clean(dir) {
			continue
		}
		s, err := runs.ReadStatus(other)
		if err != nil || s.State != runs.StateStale || s.Place != place {
			continue
		}
		if living := child.Living(other, s); living != nil {
			return fmt.Errorf("the command of run %s, whose headroom was killed, still runs and keeps its checkpoints in %s, too: %s", name, place, child.LeftText([]child.Left{*living}))
		}
	}
	return nil
}

// untilEnded returns a context that ends when headroom is asked to end. Such signals are meant for
// the command. Each is passed on to it, and none ends headroom before the command has ended. After
// a signal, the command is not started again.
func untilEnded(ctx context.Context) (context.Context, context.CancelFunc) {
	var ends []os.Signal
	for _, s := range []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP} {
		if !signal.Ignored(s) {
			ends = append(ends, s)
		}
	}
	if len(ends) == 0 {
		return ctx, func() {}
	}
	return signal.NotifyContext(ctx, ends...)
}

// run starts the command, and starts it again for as long as headroom has a remedy for
// its failures. It returns the exit status of the last attempt, which headroom is to exit
// with.
func (w *wrapped) run(ctx context.Context, u *ui.UI, folder *runs.Folder, name string) (harness.Result, int, error) {
	ctx, stop := untilEnded(ctx)
	defer stop()
	w.Keep = func(k runs.Known) { _ = folder.SetKnown(k) } // without it, the times of checkpoints decide after a resume
	release, err := w.claim(u, name)
	if err != nil {
		return harness.Result{}, 0, err
	}
	defer release()
	defer w.Unwatch()
	plan, known := w.Asked, w.Match != nil
	if !known {
		plan = recovery.Plan{Effective: 1, World: 1, Micro: 1}
	}
	session, err := harness.Begin(folder, harness.SessionOptions{Plan: plan, Version: readBuild().named(), OnEntry: w.entry(u), Policy: w.policy, Scrub: scrub(w.Command)})
	if err != nil {
		return harness.Result{}, 1, err
	}
	w.Run, w.Folder, w.Number = name, folder.Dir(), session.Number
	if w.Begun.IsZero() {
		w.Begun = u.Now()
		w.List()
		defer w.Wait() // it writes to the folder
	}
	w.Log = func(n int) (io.WriteCloser, error) { return folder.Output(n) }
	w.Trouble = func(err error) { u.Warn("%v", err) }
	var journal harness.Journal = session
	w.Said = func(r rewrite.Result) {
		journal.Note(runs.Entry{Kind: runs.KindRemedy, Text: "in the command: " + changesText(r.Changes)})
	}
	w.Skipped = func(why string) { journal.Note(runs.Entry{Kind: runs.KindWarning, Text: why}) }
	place := ""
	if w.seen != nil {
		place = checkpoints.Place(w.seen)
	}
	first := true
	w.Started = func(p runs.Process) {
		journal.Commands(p, place)
		if !first {
			return
		}
		first = false
		journal.Note(runs.Entry{Kind: runs.KindCommand, Text: w.recognisedText()})
		if text := w.Foreseen(); text != "" {
			journal.Note(runs.Entry{Kind: runs.KindWarning, Text: text})
		}
	}
	if !w.request.NoWorker {
		within := &inside{u: u, journal: journal, mode: w.mode()}
		within.allow, _ = w.request.allowances()
		w.Inside, w.RunsOut = within.begin, within.runsOut
		w.Made = within.stepsMade
	}
	why := ""
	if w.why != nil {
		why = w.why.Error()
	}
	check := func(b wrap.Beginning) error {
		if err := rival(folder.Dir(), place); err != nil {
			return err
		}
		_, err := w.Prepare(b.Plan, b.From, b.Fallbacks...)
		return err
	}
	live := func(ctx context.Context, b wrap.Beginning) (exits.Outcome, command.Exit, error) {
		defer beat(journal)()
		o, exit, err := w.Live(ctx, b)
		if exit.Code != 0 {
			w.never = w.Command.Unopened(exit.Tail)
		}
		return o, exit, err
	}
	o := wrap.RunOptions{Live: live, Newest: w.newest, Resumes: w.Resumes(), Recover: known, Why: why, Check: check, Made: w.Made, Clear: w.Clear, Left: w.LeftText}
	if w.Chooses() {
		o.Reject, o.Judge = w.Reject, w.Judge
	}
	return wrap.Run(ctx, session, o)
}

// scrub returns a function that removes the command's secrets from a text, or nil if it has none.
func scrub(c command.Line) func(string) string {
	if _, secrets := runs.Masked(c.Args); len(secrets) > 0 {
		return runs.Scrub(secrets)
	}
	return nil
}

// lead carries out the run in its folder, closes the folder and reports the outcome.
func (w *wrapped) lead(ctx context.Context, u *ui.UI, folder *runs.Folder, name string) error {
	u.Screen.Breaks = w.BreakLine
	result, code, err := w.run(ctx, u, folder, name)
	if lost := folder.Close(); lost != nil { // that does not change how the command ended
		u.Warn("%v", lost)
	}
	return w.ended(u, folder.Dir(), result, code, err)
}

// claim tells other headroom processes where the command of the run with the given name keeps its
// checkpoints, until release is called. If another process has already claimed that place, claim
// returns a usage error for a resume; any other run goes on, but is only watched and never started
// again. A process that comes later is noted: what is written from then on may be its own.
func (w *wrapped) claim(u *ui.UI, run string) (release func(), err error) {
	release = func() {}
	match := w.Match
	if match == nil {
		match = w.seen // it is not started again, but it writes
	}
	if match == nil {
		return release, nil
	}
	held, err := checkpoints.Announce(match, run, func(who string) { w.Joined(match, who) })
	release = func() { _ = held.Close() } // the claim ends with the process in any case
	switch {
	case err != nil && w.before != nil:
		release()
		return nil, ui.AsUsage(err)
	case err != nil && w.Match != nil:
		u.Warn("%v; this run is only watched, and will not be started again if it fails", err)
		w.Match, w.why = nil, err
	}
	return release, nil
}

// newest returns the newest checkpoint. Its Micro is the micro-batch that was in force when the
// checkpoint was written, if an earlier process of this run recorded that. Otherwise Micro is
// the micro-batch that the user's command asks for.
func (w *wrapped) newest() (*wrap.Saved, error) {
	saved, err := w.Newest()
	if saved != nil {
		saved.Micro = microAt(w.before, w.Asked, saved.Time)
	}
	return saved, err
}

// recognisedText says what the command was recognised as, and where its checkpoints are. If it was
// not recognised, it says why.
func (w *wrapped) recognisedText() string {
	if w.seen == nil || w.seen.Profile.Name == "" {
		return fmt.Sprint(w.why)
	}
	text := "recognised as " + w.seen.Profile.Name
	if w.seen.Profile.Name == "plain" {
		text = "recognised by its --knob settings"
	}
	if where := checkpoints.Where(w.seen); where != "" {
		return text + "; checkpoints: " + where
	}
	return text + "; it is not known where its checkpoints are"
}

// changesText lists how a rewritten command differs from the user's.
func changesText(changes []rewrite.Change) string {
	texts := make([]string, len(changes))
	for i, c := range changes {
		switch {
		case c.Old == "":
			texts[i] = fmt.Sprintf("%s %s", c.Where, c.New)
		case c.New == "":
			texts[i] = fmt.Sprintf("no %s", c.Where)
		default:
			texts[i] = fmt.Sprintf("%s %s → %s", c.Where, c.Old, c.New)
		}
	}
	return strings.Join(texts, ", ")
}

// entry returns a function that prints what happens to the command. As long as all is well, the
// function prints nothing, unless --verbose is given.
func (w *wrapped) entry(u *ui.UI) func(runs.Entry) {
	return func(e runs.Entry) {
		switch e.Kind {
		case runs.KindAttempt:
			w.refused, w.again = nil, false
		case runs.KindRefused:
			w.refused = e.OOM
		case runs.KindOOM:
			leak := e.Verdict != nil && e.Verdict.Cause == memory.Leak // a leak has not been reported
			if w.again = w.refused != nil && e.OOM != nil && e.OOM.Requested == w.refused.Requested && !leak; w.again {
				e.Text = "the command ended with " + leftFailure
			}
		}
		switch {
		case w.verbose:
		case e.Kind == runs.KindRun, e.Kind == runs.KindPlan, e.Kind == runs.KindExit, e.Kind == runs.KindCheckpoint, e.Kind == runs.KindCommand, e.Kind == runs.KindWorker,
			e.Kind == runs.KindAttempt && e.Attempt == 1:
			return
		}
		u.Entry(e)
	}
}

// leftFailure is how a message refers to a failure that has already been reported.
const leftFailure = "the failure above, which headroom left to the command's own code"

// ended says how the command ended if the command's own output does not, and draws the report if
// one is worth drawing. The error that it returns carries the command's exit status.
func (w *wrapped) ended(u *ui.UI, dir string, result harness.Result, code int, err error) error {
	var exit *wrap.ExitError
	exited := errors.As(err, &exit)
	if why := w.neverRan(exited, code, err); why != nil && w.made && result.Attempts == 1 {
		if failed := os.RemoveAll(dir); failed != nil { // the folder records nothing else
			u.Warn("%v", failed)
		}
		return why
	}
	quiet := exited && !exit.Memory && !exit.Killed && result.Failures == 0 // the command has said everything itself
	w.draw(u, dir, result.Failures > 0 || err != nil && !quiet)
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
		if code != 0 {
			var end *wrap.InterruptedError
			err = &ui.ChildError{Code: code, Err: err, Interrupted: errors.As(err, &end) && end.Signal == syscall.SIGINT}
		}
		u.Stopped(ui.ExitStatus(err), w.goesOn())
		return err
	case errors.As(err, new(*command.StartError)):
		return notStarted(w.Command, err)
	case code != 0:
		return &ui.ChildError{Code: code, Err: err}
	}
	return err
}

// neverRan returns the error for a command that could not be started, or whose script Python could
// not open. It returns nil if the command has run.
func (w *wrapped) neverRan(exited bool, code int, err error) error {
	switch {
	case exited && w.never != "":
		return neverBegan(w.Command, w.never, code)
	case errors.As(err, new(*command.StartError)):
		return notStarted(w.Command, err)
	}
	return nil
}

// draw draws the report if something happened, or if it is worth one anyway. Only in the first case
// does the user learn where it is: otherwise the terminal belongs to the command.
func (w *wrapped) draw(u *ui.UI, dir string, happened bool) {
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
	case exit.Memory && w.again:
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
	if w.Match == nil {
		return "headroom resume cannot continue this command: run it again, from its own checkpoint if it has written one"
	}
	return "headroom resume " + w.Run + " continues from its newest checkpoint, or from the beginning if there is none"
}

// hint returns what would help next time, or "" if headroom knows of nothing.
func (w *wrapped) hint(exit *wrap.ExitError) string {
	switch {
	case exit.Hint != "":
		return exit.Hint
	case w.Match != nil:
		return w.goesOn()
	}
	return ""
}
