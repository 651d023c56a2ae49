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
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"
	"go.yaml.in/yaml/v3"

	"headroom/configs"
	"headroom/harness"
	"headroom/memory"
	"headroom/recovery"
	"headroom/runs"
	"headroom/wrap"
)

// commandKey is where main puts the words behind "--" in the context.
type commandKey struct{}

// commandOf is the command behind "--", nil if there is none.
func commandOf(c *cli.Context) []string {
	words, _ := c.Context.Value(commandKey{}).([]string)
	return words
}

// wrapFlags are those of run that are about a wrapped command.
func wrapFlags() []cli.Flag {
	return append(knownFlags(),
		&cli.StringSliceFlag{Name: "allow", Usage: "with --: a fallback of the profile's that may be used although the training is then not the same to the bit, such as recompute or no-workers; may be repeated (`NAME`)"},
		&cli.StringFlag{Name: "free", Usage: "with --: start only once every GPU of the command has `SIZE` free, such as 60GiB"},
		&cli.DurationFlag{Name: "hang", Value: 30 * time.Minute, Usage: "with --: say that the command may hang after `TIME` without output, GPU work or a new checkpoint; 0 never does"},
		boolFlag("restart-hung", "with --: end a command that hangs, and start it again from its newest checkpoint"),
		boolFlag("watch-only", "with --: never change the command, and never start it again"),
		boolFlag("dry-run", "with --: print what was recognised and what a smaller micro-batch would change, and start nothing"))
}

// knownFlags are those that say what is known of a wrapped command.
func knownFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringSliceFlag{Name: "knob", Usage: "with --: where the command takes a quantity, as in micro=--batch-size or accumulation=--accum; may be repeated (`NAME=FLAG`)"},
		&cli.StringFlag{Name: "profile", Usage: "with --: how to read the command, a profile's name or a `FILE` with one"},
		&cli.IntFlag{Name: "world", Usage: "with --: `N` data-parallel ranks, where the command does not say"},
		boolFlag("trust", "with --: take for true what headroom cannot prove of the command, such as that the loss is divided by the accumulation"),
	}
}

// wrapAction runs a command of the user's. As long as nothing happens it says
// nothing: the terminal is the command's.
func wrapAction(u *ui, c *cli.Context, words []string) error {
	u.quiet = c.Bool("quiet")
	if len(words) == 0 {
		return usagef("headroom run -- python train.py", "there is no command behind --")
	}
	for _, flag := range []string{"set", "fresh", "again", "json", "no-progress"} {
		if c.IsSet(flag) {
			return usagef("leave it out", "--%s is for a run of a configuration, not for a command", flag)
		}
	}
	kept, err := commandFrom(c, words)
	if err != nil {
		return err
	}
	w, err := recognised(kept)
	if err != nil {
		return err
	}
	w.verbose = c.Bool("verbose")
	if c.Bool("dry-run") {
		return u.dryRun(w)
	}
	folder, name, err := w.folder(c.String("name"))
	if err != nil {
		return err
	}
	return w.lead(c.Context, u, folder, name)
}

// keptCommand is the run.yaml of a wrapped command: the command, and what the user
// said of it.
type keptCommand struct {
	Command     []string      `yaml:"command"`
	Dir         string        `yaml:"dir"`
	Profile     string        `yaml:"profile,omitempty"`
	Knobs       []string      `yaml:"knobs,omitempty"`
	World       int           `yaml:"world,omitempty"`
	WatchOnly   bool          `yaml:"watch_only,omitempty"`
	Trust       bool          `yaml:"trust,omitempty"`
	Allow       []string      `yaml:"allow,omitempty"`
	Free        string        `yaml:"free,omitempty"`
	Hang        time.Duration `yaml:"hang"`
	RestartHung bool          `yaml:"restart_hung,omitempty"`
}

// commandFrom is the command as the command line has it, in this folder.
func commandFrom(c *cli.Context, words []string) (keptCommand, error) {
	dir, err := os.Getwd()
	if err != nil {
		return keptCommand{}, fmt.Errorf("run: %w", err)
	}
	k := keptCommand{Command: words, Dir: dir, Profile: c.String("profile"), Knobs: c.StringSlice("knob"), World: c.Int("world"),
		WatchOnly: c.Bool("watch-only"), Trust: c.Bool("trust"), Allow: c.StringSlice("allow"), Free: c.String("free"), Hang: c.Duration("hang"), RestartHung: c.Bool("restart-hung")}
	if isProfileFile(k.Profile) && !filepath.IsAbs(k.Profile) {
		k.Profile = filepath.Join(dir, k.Profile)
	}
	if k.Hang < 0 {
		return k, usagef("such as --hang 30m, or 0 for never", "--hang %v is negative", k.Hang)
	}
	if k.RestartHung && k.Hang == 0 {
		return k, usagef("leave out one of them", "--restart-hung has nothing to act on with --hang 0")
	}
	return k, nil
}

// wrapped is a command with what headroom knows of it.
type wrapped struct {
	wrap.Wrapped
	kept    keptCommand
	policy  recovery.Policy
	why     error        // nothing is known of the command, and this is why
	before  []runs.Entry // journal of the run's earlier processes
	verbose bool
}

// recognised looks at the command. That nothing is known of it is no error: it is
// run all the same, and never changed.
func recognised(k keptCommand) (*wrapped, error) {
	w := &wrapped{kept: k, policy: recovery.Policy{Relaunches: 3, Waits: 10}}
	w.Command, w.Trust = wrap.Command{Args: k.Command, Env: os.Environ(), Dir: k.Dir}, k.Trust
	w.Hang, w.Restart = k.Hang, k.RestartHung
	if k.Free != "" {
		free, err := memory.Parse(k.Free)
		if err != nil || free <= 0 {
			return nil, usagef("such as --free 60GiB", "--free %s is no amount of memory", k.Free)
		}
		w.Free = free
	}
	profiles, name, err := profilesFor(k.Profile)
	if err != nil {
		return nil, asUsage(err)
	}
	if k.WatchOnly {
		w.why = errors.New("--watch-only was given")
		return w, nil
	}
	w.Match, w.why = wrap.Recognise(w.Command, profiles, wrap.Given{Files: os.DirFS("/"), Profile: name, Knobs: k.Knobs, World: k.World})
	var asked wrap.Asked
	if w.why == nil {
		asked, w.why = w.Match.Plan()
	}
	if w.why != nil {
		w.Match = nil
		if len(k.Knobs)+len(k.Allow) > 0 || k.Profile != "" {
			return nil, asUsage(w.why) // what was said of it is wrong
		}
		return w, nil
	}
	w.Asked = asked.Plan
	w.policy.Host, w.policy.Recompute, err = w.Match.Fallbacks(k.Allow)
	w.policy.Able.Recompute = w.policy.Recompute
	return w, asUsage(err)
}

// isProfileFile tells the path of a profile from the name of one.
func isProfileFile(given string) bool { return strings.ContainsAny(given, "./") }

// profilesFor are the profiles to choose from: the user's own before the built-in
// ones. A file that is named holds the one to take.
func profilesFor(given string) (all []wrap.Profile, name string, err error) {
	all = wrap.Builtin()
	if config, err := os.UserConfigDir(); err == nil {
		own, err := wrap.LoadProfiles(os.DirFS(filepath.Join(config, "headroom")), "profiles")
		if err != nil && !missing(err) {
			return nil, "", err
		}
		all = wrap.Over(own, all)
	}
	if !isProfileFile(given) {
		return all, given, nil
	}
	one, err := wrap.LoadProfiles(os.DirFS(filepath.Dir(given)), filepath.Base(given))
	if err != nil {
		return nil, "", err
	}
	return wrap.Over(one, all), one[0].Name, nil
}

var notForNames = regexp.MustCompile(`[^A-Za-z0-9._-]+`)

// nameFor is a run's name after the script, or else the program.
func nameFor(words []string) string {
	name := filepath.Base(words[0])
	for _, w := range words {
		if strings.HasSuffix(w, ".py") {
			name = strings.TrimSuffix(filepath.Base(w), ".py")
			break
		}
	}
	return cmp.Or(strings.TrimLeft(notForNames.ReplaceAllString(name, "-"), ".-"), "command") + "-run"
}

// folder makes a new one for the run: a command that is given again is run again,
// also while it runs already. A name that was asked for must be free.
func (w *wrapped) folder(asked string) (*runs.Folder, string, error) {
	if asked != "" && !configs.IsName(asked) {
		return nil, "", usagef("", "--name %s: no name for a folder; allowed: %s", asked, configs.NamesAllowed)
	}
	if err := os.MkdirAll(runsFolder, 0o755); err != nil {
		return nil, "", asUsage(fmt.Errorf("make the folder of runs: %w", err))
	}
	base := cmp.Or(asked, nameFor(w.Command.Args))
	name := base
	for n := 2; ; n++ {
		err := os.Mkdir(filepath.Join(runsFolder, name), 0o755) // whoever makes it has the name
		if err == nil {
			break
		}
		if !errors.Is(err, os.ErrExist) {
			return nil, "", asUsage(fmt.Errorf("make the folder of the run: %w", err))
		}
		if asked != "" {
			return nil, "", usagef("--name with another name, or none", "there is a run %s already", filepath.Join(runsFolder, name))
		}
		name = fmt.Sprintf("%s-%d", base, n)
	}
	folder, err := runs.Open(filepath.Join(runsFolder, name))
	if err != nil {
		return nil, "", asUsage(err)
	}
	text, err := yaml.Marshal(w.kept)
	if err == nil {
		err = folder.FirstConfig(text)
	}
	if err != nil {
		return nil, "", errors.Join(fmt.Errorf("write run.yaml: %w", err), folder.Close())
	}
	return folder, name, nil
}

// run lives the command's lives.
func (w *wrapped) run(ctx context.Context, u *ui, folder *runs.Folder, name string) (harness.Result, int, error) {
	// Signals are the child's: each is passed on to it, and none ends headroom before
	// the child has ended. After one nothing is started again.
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
	plan, known := w.Asked, w.Match != nil
	if !known {
		plan = recovery.Plan{Effective: 1, World: 1, Micro: 1}
	}
	session, err := harness.Begin(folder, harness.SessionOptions{Plan: plan, OnEntry: w.entry(u), Policy: w.policy})
	if err != nil {
		return harness.Result{}, 1, err
	}
	w.Run, w.Number = name, session.Number
	if w.Begun.IsZero() {
		w.Begun = u.now()
	}
	w.Log = func(n int) (io.WriteCloser, error) { return folder.Output(n) }
	w.Trouble = func(err error) { u.warn("%v", err) }
	w.Said = func(r wrap.Rewritten) {
		session.Note(runs.Entry{Kind: runs.KindRemedy, Text: "in the command: " + changesText(r.Changes)})
	}
	return wrap.Run(ctx, session, wrap.RunOptions{Live: w.Live, Newest: w.newest, Resumes: w.Resumes(), Recover: known})
}

// lead makes the run in its folder, and ends it.
func (w *wrapped) lead(ctx context.Context, u *ui, folder *runs.Folder, name string) error {
	result, code, err := w.run(ctx, u, folder, name)
	if lost := folder.Close(); lost != nil { // the command has ended as it did all the same
		u.warn("%v", lost)
	}
	return w.ended(u, folder.Dir(), result, code, err)
}

// newest is the newest checkpoint, with the micro-batch that wrote it as far as an
// earlier process of this run has noted that.
func (w *wrapped) newest() (*wrap.Saved, error) {
	saved, err := w.Newest()
	if saved != nil {
		saved.Micro = microAt(w.before, w.Asked, saved.Time)
	}
	return saved, err
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
		switch {
		case w.verbose:
		case e.Kind == runs.KindRun, e.Kind == runs.KindPlan, e.Kind == runs.KindExit, e.Kind == runs.KindCheckpoint,
			e.Kind == runs.KindAttempt && e.Attempt == 1:
			return
		}
		u.entry(e)
	}
}

// ended says how the command ended where its own words do not, and passes its status
// on.
func (w *wrapped) ended(u *ui, dir string, result harness.Result, code int, err error) error {
	var exit *wrap.ExitError
	quiet := errors.As(err, &exit) && !exit.Memory && result.Failures == 0 // the command has said it all
	if result.Failures > 0 || err != nil && !quiet {
		if r, drawn := drawn(dir, "", u.now()); drawn == nil {
			if failed := writeReport(u, r, dir); failed != nil {
				u.noReport(failed)
			}
		}
	}
	var start *wrap.StartError
	switch {
	case err == nil:
		if result.Failures > 0 {
			u.survived(result)
		}
		return nil
	case errors.As(err, &exit), errors.As(err, new(*harness.GaveUpError)), isInterrupted(err):
		if code == 0 {
			return err
		}
		return &childError{code: code, err: err, hint: w.hint(exit, err), quiet: quiet}
	case errors.As(err, &start):
		return &childError{code: start.Code, err: err}
	case code != 0:
		return &childError{code: code, err: err}
	}
	return err
}

// hint is what would help next time.
func (w *wrapped) hint(exit *wrap.ExitError, err error) string {
	resumes := "headroom resume " + w.Run + " goes on from its newest checkpoint, or from the beginning without one"
	switch {
	case exit == nil && isInterrupted(err) && w.Match != nil:
		return resumes
	case exit == nil:
		return ""
	case exit.Hint != "":
		return exit.Hint
	case w.why != nil && exit.Memory:
		return fmt.Sprintf("headroom could have gone on with a smaller micro-batch if it knew the command: %v", w.why)
	case w.Match != nil:
		return resumes
	}
	return ""
}

// childError is a wrapped command that did not end with 0. Its status is the
// command's own.
type childError struct {
	code int
	err  error
	hint string

	quiet bool // there is nothing to add to what the command said
}

func (e *childError) Error() string { return e.err.Error() }
func (e *childError) Unwrap() error { return e.err }
