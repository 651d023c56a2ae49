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

	"headroom/configs"
	"headroom/harness"
	"headroom/memory"
	"headroom/recovery"
	"headroom/report"
	"headroom/runs"
	"headroom/worker"
	"headroom/wrap"
)

// wrapAction runs the user's command. As long as nothing happens it prints
// nothing: the terminal is the command's.
func wrapAction(u *ui, c *cli.Context, r request) error {
	u.quiet = c.Bool("quiet")
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
		return u.answer(explained(w, u.now()).brief())
	}
	if err := w.Command.Startable(); err != nil { // before a folder is made for a mistyped command
		return notStarted(w.Command, err)
	}
	ahead := dashesOf(c).ahead
	if ahead.signals == nil { // the command is in a file
		ahead = newAhead(!r.NoWorker)
		defer ahead.folder.Discard()
	}
	w.ready = ahead.folder
	if w.Standby = ahead.signals; w.Free > 0 { // the start may be a long time off
		w.Standby.Release()
		w.Standby = nil
	}
	folder, name, err := w.folder(r.Name)
	if err != nil {
		return err
	}
	w.made = true
	live.serve(u, folder.Dir())
	return w.lead(c.Context, u, folder, name)
}

// wrapped is a command with what headroom knows about it.
type wrapped struct {
	wrap.Wrapped
	request request
	policy  recovery.Policy
	seen    *wrap.Match  // what it was recognised as, even if Match is nil
	why     error        // why Match is nil; nil if it is not
	before  []runs.Entry // journal of the run's earlier processes
	made    bool         // the run's folder is new
	verbose bool
	refused *memory.OutOfMemoryError // the newest failure in this attempt that was left to the command's own code; nil if there is none
	again   bool                     // the attempt ended with that failure, which has been reported
	ready   *worker.Standby          // of the worker in the command's processes; if nil, made when it is needed
}

// recognised finds out what is known about the command. It is not an error if nothing is
// known: then the command is run all the same, and never changed.
func recognised(r request) (*wrapped, error) {
	w := &wrapped{request: r, policy: recovery.Policy{Relaunches: 3, Waits: 10}}
	w.Command, w.Trust = wrap.Command{Args: r.Args, Env: os.Environ(), Dir: r.Dir}, r.Trust
	w.Hang, w.Restart, w.Leave, w.Free = r.Hang, r.RestartHung, r.RestartLeaking, r.Free
	profiles, name, err := profilesFor(r.Profile)
	if err != nil {
		return nil, asUsage(err)
	}
	w.Match, w.why = wrap.Recognise(w.Command, profiles, wrap.Given{Files: os.DirFS("/"), Profile: name, Knobs: r.Knobs, World: r.World})
	if w.seen = w.Match; r.WatchOnly {
		w.Match, w.why = nil, errors.New("--watch-only was given")
		return w, nil
	}
	_, fallbacks := r.allowances()
	var asked wrap.Asked
	if w.why == nil {
		asked, w.why = w.Match.Plan()
	}
	if w.why != nil {
		w.Match = nil
		switch { // what the user said about the command is wrong
		case len(r.Knobs) > 0 || r.Profile != "":
			return nil, asUsage(r.placed(w.why))
		case len(fallbacks) > 0:
			return nil, &usageError{w.why, workerAllowances()}
		}
		return w, nil
	}
	w.Asked = asked.Plan
	w.policy.Host, w.policy.Recompute, err = w.Match.Fallbacks(fallbacks)
	w.policy.Able = recovery.Able{Recompute: w.policy.Recompute, Eval: w.Asked.Eval > 0}
	if err != nil {
		err = &usageError{err, workerAllowances()}
	}
	return w, err
}

// onlyOfNames is s with dashes in place of characters that are not allowed in names.
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

// nameFor names a run after the script, or else after the program.
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

// folder makes a new folder for the run: the same command given again is a new run,
// even while the old one is still going. A name that was asked for must be free.
func (w *wrapped) folder(asked string) (*runs.Folder, string, error) {
	if asked != "" && !configs.IsName(asked) {
		return nil, "", usagef("", "--name %s: not a valid name for a folder; allowed: %s", asked, configs.NamesAllowed)
	}
	dir := configs.RunsDir()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, "", usagef("set HEADROOM_RUNS_DIR to a folder that you may write to", "create the runs folder: %v", err)
	}
	base := cmp.Or(asked, nameFor(w.Command.Args))
	name := base
	for n := 1; ; {
		err := os.Mkdir(filepath.Join(dir, name), 0o755) // whoever makes the folder has the name
		if err == nil {
			break
		}
		if !errors.Is(err, os.ErrExist) {
			return nil, "", asUsage(fmt.Errorf("make the folder of the run: %w", err))
		}
		if asked != "" {
			return nil, "", usagef("give a different --name, or none", "there is a run %s already%s", filepath.Join(dir, name), inUse(filepath.Join(dir, name)))
		}
		n = max(n, newestNumber(dir, base)) + 1
		name = fmt.Sprintf("%s-%d", base, n)
	}
	folder, err := w.begun(filepath.Join(dir, name))
	if err != nil { // nothing was started, and so nothing is left behind
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, name)))
		return nil, "", usagef("make room, or set HEADROOM_RUNS_DIR to a folder on another disk", "%w", err)
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
	text, err := kept.YAML()
	if err == nil {
		err = folder.FirstConfig(text)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("write run.yaml: %w", err), folder.Close())
	}
	return folder, nil
}

// newestNumber is the highest N of the folders base-N in dir, or 1: after hundreds of
// runs, trying one after the other would cost every start a millisecond.
func newestNumber(dir, base string) int {
	newest := 1
	folder, err := os.Open(dir)
	if err != nil {
		return newest
	}
	defer func() { _ = folder.Close() }()
	names, _ := folder.Readdirnames(-1) // those that could be read
	for _, name := range names {
		if number, ok := strings.CutPrefix(name, base+"-"); ok {
			if n, err := strconv.Atoi(number); err == nil {
				newest = max(newest, n)
			}
		}
	}
	return newest
}

// inUse is what to say about a run's folder while a process works in it, "" if none does.
func inUse(dir string) string {
	s, err := runs.ReadStatus(dir)
	if err != nil || s.State != runs.StateRunning {
		return ""
	}
	return fmt.Sprintf(", and process %d is working in it", s.PID)
}

// run takes the command through its lives.
func (w *wrapped) run(ctx context.Context, u *ui, folder *runs.Folder, name string) (harness.Result, int, error) {
	// Signals are the child's: each is passed on to it, and none ends headroom before
	// the child has ended. After a signal nothing is started again.
	var ends []os.Signal
	for _, s := range []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP} {
		if !signal.Ignored(s) {
			ends = append(ends, s)
		}
	}
	if len(ends) > 0 {
		var stop func()
		ctx, stop = signal.NotifyContext(ctx, ends...)
		defer stop()
	}
	release, err := w.claim(u)
	if err != nil {
		return harness.Result{}, 0, err
	}
	defer release()
	plan, known := w.Asked, w.Match != nil
	if !known {
		plan = recovery.Plan{Effective: 1, World: 1, Micro: 1}
	}
	session, err := harness.Begin(folder, harness.SessionOptions{Plan: plan, Version: readBuild().named(), OnEntry: w.entry(u), Policy: w.policy})
	if err != nil {
		return harness.Result{}, 1, err
	}
	w.Run, w.Number = name, session.Number
	if w.Begun.IsZero() {
		w.Begun = u.now()
	}
	w.Log = func(n int) (io.WriteCloser, error) { return folder.Output(n) }
	w.Trouble = func(err error) { u.warn("%v", err) }
	books := &books{Session: session}
	w.Said = func(r wrap.Rewritten) {
		books.Note(runs.Entry{Kind: runs.KindRemedy, Text: "in the command: " + changesText(r.Changes)})
	}
	w.Started = func() {
		books.Note(runs.Entry{Kind: runs.KindCommand, Text: w.recognisedText()})
		if text := w.Foreseen(); text != "" {
			books.Note(runs.Entry{Kind: runs.KindWarning, Text: text})
		}
		w.Started = nil // once is enough
	}
	if !w.request.NoWorker {
		within := &inside{u: u, books: books, mode: w.mode(), ready: w.ready}
		within.allow, _ = w.request.allowances()
		w.Inside, w.RunsOut = within.begin, within.runsOut
	}
	why := ""
	if w.why != nil {
		why = w.why.Error()
	}
	check := func(b wrap.Beginning) error {
		_, err := w.Prepare(b.Plan, b.From, b.Fallbacks...)
		return err
	}
	live := func(ctx context.Context, b wrap.Beginning) (wrap.Outcome, wrap.Exit, error) {
		defer books.beat()()
		return w.Live(ctx, b)
	}
	return wrap.Run(ctx, session, wrap.RunOptions{Live: live, Newest: w.newest, Resumes: w.Resumes(), Recover: known, Why: why, Check: check})
}

// lead carries out the run in its folder, and ends it.
func (w *wrapped) lead(ctx context.Context, u *ui, folder *runs.Folder, name string) error {
	u.screen.breaks = w.BreakLine
	result, code, err := w.run(ctx, u, folder, name)
	if lost := folder.Close(); lost != nil { // that does not change how the command ended
		u.warn("%v", lost)
	}
	return w.ended(u, folder.Dir(), result, code, err)
}

// claim keeps other headrooms away from the command's checkpoints. If another headroom
// already holds them, a resume is refused; any other run is only watched, and never resumed.
func (w *wrapped) claim(u *ui) (release func(), err error) {
	release = func() {}
	if w.Match == nil {
		return release, nil
	}
	held, err := w.Match.Claim()
	switch {
	case err != nil && w.before != nil:
		return nil, asUsage(err)
	case err != nil:
		u.warn("%v; this run is only watched, and will not be started again if it fails", err)
		w.Match, w.why = nil, err
	case held != nil:
		release = func() { _ = held.Close() } // the claim ends with the process in any case
	}
	return release, nil
}

// newest is the newest checkpoint, with the micro-batch in force when it was written, if an
// earlier process of this run recorded that, or else the one asked for.
func (w *wrapped) newest() (*wrap.Saved, error) {
	saved, err := w.Newest()
	if saved != nil {
		saved.Micro = microAt(w.before, w.Asked, saved.Time)
	}
	return saved, err
}

// recognisedText says what the command was recognised as, and where its checkpoints are.
func (w *wrapped) recognisedText() string {
	if w.seen == nil || w.seen.Profile.Name == "" {
		return fmt.Sprint(w.why)
	}
	text := "recognised as " + w.seen.Profile.Name
	if w.seen.Profile.Name == "plain" {
		text = "recognised by its --knob settings"
	}
	if where := w.seen.Where(); where != "" {
		return text + "; checkpoints: " + where
	}
	return text + "; it is not known where its checkpoints are"
}

// changesText lists how a rewritten command differs from the user's.
func changesText(changes []wrap.Change) string {
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

// entry says what has happened to the command, and nothing as long as all is well.
func (w *wrapped) entry(u *ui) func(runs.Entry) {
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
		u.entry(e)
	}
}

// leftFailure stands for a failure that has been reported.
const leftFailure = "the failure that was left to its own code"

// ended says how the command ended if its own output does not, and passes on its
// status.
func (w *wrapped) ended(u *ui, dir string, result harness.Result, code int, err error) error {
	if errors.As(err, new(*wrap.StartError)) && w.made && result.Attempts == 1 {
		if failed := os.RemoveAll(dir); failed != nil { // the folder records nothing else
			u.warn("%v", failed)
		}
		return notStarted(w.Command, err)
	}
	var exit *wrap.ExitError
	quiet := errors.As(err, &exit) && !exit.Memory && !exit.Killed && result.Failures == 0 // the command has said it all
	happened := result.Failures > 0 || err != nil && !quiet
	if happened || w.worthAReport(dir, u.now()) {
		if r, drawn := drawn(dir, "", u.now()); drawn == nil {
			if failed := r.Write(dir); failed != nil {
				u.noReport(failed)
			} else if happened { // otherwise the terminal is the command's
				u.reportWritten(filepath.Join(dir, report.Page))
			}
		}
	}
	switch {
	case err == nil:
		if result.Failures > 0 {
			u.survived(result)
		}
		return nil
	case isInterrupted(err):
		if code != 0 {
			err = &childError{code: code, err: err}
		}
		u.stopped(exitStatus(err), w.goesOn())
		return err
	case errors.As(err, &exit), errors.As(err, new(*harness.GaveUpError)):
		if code == 0 {
			return err
		}
		hint := w.hint(exit)
		if exit != nil && exit.Memory && w.again {
			err = fmt.Errorf("%s: %s", exit.How, leftFailure)
		}
		return &childError{code: code, err: err, hint: hint, quiet: quiet}
	case errors.As(err, new(*wrap.StartError)):
		return notStarted(w.Command, err)
	case code != 0:
		return &childError{code: code, err: err}
	}
	return err
}

// longRun is how long a command must have run for its report to be drawn although nothing
// happened: drawing it takes a fraction of a second.
const longRun = time.Minute

// worthAReport reports whether the report of a command is drawn at its end although nothing
// happened: it ran for a long time, or the existing report would be out of date.
func (w *wrapped) worthAReport(dir string, now time.Time) bool {
	_, err := os.Stat(filepath.Join(dir, report.Page))
	return err == nil || now.Sub(w.Begun) >= longRun
}

// goesOn is how to continue the run.
func (w *wrapped) goesOn() string {
	if w.Match == nil {
		return "headroom resume cannot continue this command: run it again, from its own checkpoint if it has written one"
	}
	return "headroom resume " + w.Run + " continues from its newest checkpoint, or from the beginning if there is none"
}

// hint is what would help next time.
func (w *wrapped) hint(exit *wrap.ExitError) string {
	switch {
	case exit == nil:
		return ""
	case exit.Hint != "":
		return exit.Hint
	case w.Match != nil:
		return w.goesOn()
	}
	return ""
}

// childError is the error of another program that did not exit with 0. If that was the wrapped
// command, its status is the command's own.
type childError struct {
	code int
	err  error
	hint string

	quiet bool // there is nothing to add to what the command said
}

func (e *childError) Error() string { return e.err.Error() }
func (e *childError) Unwrap() error { return e.err }
