package main

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/urfave/cli/v2"

	"headroom/cmd/headroom/ui"
	"headroom/configs"
	"headroom/recovery"
	"headroom/runs"
	"headroom/wrap/checkpoints"
	"headroom/wrap/child"
)

func resumeCommand(u *ui.UI) *cli.Command {
	command := &cli.Command{
		Name:      "resume",
		Usage:     "continue a wrapped command's run",
		ArgsUsage: "RUN",
		Description: `RUN is a name, or a folder. The command of that run is started again in the
folder where it was first started, from its newest complete checkpoint and with
the micro-batch that it had reached, and is looked after as before. Use this for
a run that was interrupted, gave up, or was ended by a restart of the machine.

A run of a configuration needs no resume: give the same command again.`,
		Flags: append(webFlags(), boolFlag("verbose", "show the log, and every checkpoint"),
			boolFlag("trust", "assume what headroom cannot prove about the command")),
		Action: func(c *cli.Context) error { return resumeAction(u, c) },
	}
	command.BashComplete = completeFlags(command, runNames)
	return command
}

func resumeAction(u *ui.UI, c *cli.Context) error {
	u.Quiet = c.Bool("quiet")
	if wordsOf(c) != nil {
		return ui.Usagef("headroom resume RUN", "the command is taken from the run; give nothing after --")
	}
	if c.NArg() != 1 {
		return ui.Usagef("headroom status lists the runs", "resume takes one run, not %d", c.NArg())
	}
	dir, err := runFolder(c.Args().First())
	if err != nil {
		return err
	}
	if err := alone(dir, false); err != nil {
		return err
	}
	if text := inUse(dir); text != "" {
		return ui.Usagef("wait for it, or interrupt it", "%s is still running%s", dir, text)
	}
	w, err := continuable(dir, c.Bool("trust"))
	if err != nil {
		return err
	}
	if err := rival(dir, checkpoints.Place(w.Match)); err != nil {
		return ui.Usagef("wait for it, or end it", "%w", err)
	}
	live, err := openWeb(c)
	if err != nil {
		return err
	}
	defer live.close()
	w.verbose = c.Bool("verbose")
	folder, err := runs.Open(dir)
	if err != nil {
		return ui.AsUsage(err)
	}
	if err := errors.Join(alone(dir, true), w.earlier(folder)); err != nil { // once more, now that nobody else can start it
		return errors.Join(err, folder.Close())
	}
	if err := w.own(dir); err != nil {
		return errors.Join(err, folder.Close())
	}
	live.serve(u, dir)
	return w.lead(c.Context, u, folder, filepath.Base(dir))
}

// alone returns a usage error if the command of the run in dir is still running although its
// headroom was killed: two of it must not train the same checkpoints. held says that this process
// holds the folder.
func alone(dir string, held bool) error {
	status, err := runs.ReadStatus(dir)
	if err != nil || status.State == runs.StateRunning && !held {
		return nil // nothing is recorded of its command, or its headroom runs
	}
	if living := child.Living(dir, status); living != nil {
		return ui.Usagef(fmt.Sprintf("wait until it has ended, or end it: kill %d", living.PID), "the command of %s is still running, although its headroom was killed: %s", dir, child.LeftText([]child.Left{*living}))
	}
	return nil
}

// continuable returns the command of the run in dir; trust is as in its run.yaml if that says so,
// or else as given. It returns a usage error if the run is
// finished, or if headroom does not know enough about the command to continue it.
func continuable(dir string, trust bool) (*wrapped, error) {
	kept, err := readKept(dir)
	if err != nil {
		return nil, err
	}
	kept.Trust = kept.Trust || trust
	if err := finished(dir, kept.Args); err != nil {
		return nil, err
	}
	w, err := recognised(kept)
	if err == nil && w.Match == nil {
		err = ui.Usagef("start it with headroom run", "nothing is known about the command, so it cannot be continued: %v", w.why)
	}
	return w, err
}

// finished returns a usage error if the run in dir, of the given command, is finished.
func finished(dir string, command []string) error {
	if status, err := runs.ReadStatus(dir); err == nil && status.State == runs.StateDone {
		return ui.Usagef("headroom run -- "+command[0]+" … runs the command again", "%s is finished", dir)
	}
	return nil
}

// readKept reads the run.yaml in dir, which must be that of a wrapped command.
func readKept(dir string) (request, error) {
	path := filepath.Join(dir, "run.yaml")
	kept, err := configs.LoadCommand(path)
	switch {
	case missing(err):
		return request{}, ui.AsUsage(fmt.Errorf("resume: %w", err))
	case err != nil && !configs.IsCommand(path):
		return request{}, ui.Usagef("headroom run "+path+" continues it", "%s is a run of a configuration, not of a command", dir)
	case err != nil:
		return request{}, ui.AsUsage(err)
	}
	words, err := runs.Unmasked(dir, kept.Args)
	if err != nil {
		return request{}, ui.Usagef("headroom run -- "+kept.Args[0]+" … starts the command again", "resume %s: %w", dir, err)
	}
	kept.Args = words
	return request{Command: *kept, file: path}, nil
}

// earlier reads into w what the run's earlier processes recorded. It returns a usage error if
// the run is finished.
func (w *wrapped) earlier(folder *runs.Folder) error {
	dir := folder.Dir()
	err := finished(dir, w.Command.Args) // once more, now that this process holds the folder
	if err != nil {
		return err
	}
	if w.before, err = runs.ReadJournal(dir); err != nil {
		return fmt.Errorf("resume: %w", err)
	}
	if len(w.before) > 0 {
		w.Begun = w.before[0].Time
	}
	known, err := folder.Known()
	if err != nil {
		return fmt.Errorf("resume: %w", err)
	}
	w.Recall(known)
	for _, e := range w.before {
		w.Mixed = cmp.Or(e.Mixed, w.Mixed)
	}
	return nil
}

const (
	// clocks is how far apart the clocks of a network disk and of this machine may be.
	clocks = 5 * time.Second
	// lastSave is how long a command may go on saving a checkpoint after its headroom process
	// was killed. The system sends SIGTERM to the command at the time of the kill.
	lastSave = 2 * time.Minute
)

// own returns a usage error if the newest checkpoint was written after the run in dir had
// ended: such a checkpoint belongs to another training run. A run that was killed counts as
// ended at the time when it was last recorded as alive. If there is no such record, own
// returns nil.
func (w *wrapped) own(dir string) error {
	status, err := runs.ReadStatus(dir)
	if err != nil || len(w.before) == 0 {
		return nil // there is nothing to compare with
	}
	last, how, margin := w.before[len(w.before)-1].Time, "had ended", clocks
	switch {
	case status.State == runs.StateInterrupted, status.State == runs.StateFailed:
	case status.Every > 0: // the status says running, but this process holds the folder: the run was killed
		how, margin = "was last alive", clocks+lastSave+time.Duration(status.Every*float64(time.Second))
		if status.Updated.After(last) {
			last = status.Updated
		}
	default:
		return nil
	}
	newest, err := w.Newest()
	if err != nil || newest == nil || w.Wrote(newest) || newest.Time.Before(last.Add(margin)) {
		return nil // the checkpoint is looked for again when the command is started
	}
	return ui.Usagef("move that checkpoint elsewhere to continue from this run's own checkpoint; or start the command with headroom run, and name that checkpoint in the command",
		"%s was written at %s, after %s %s at %s: it belongs to another training run", newest.Path, newest.Time.Format(time.DateTime), dir, how, last.Local().Format(time.DateTime))
}

// microAt returns the micro-batch that was in force at a given time, according to the
// journal of a run. asked is the plan with which that run began.
func microAt(journal []runs.Entry, asked recovery.Plan, at time.Time) int {
	for _, e := range slices.Backward(journal) {
		if e.Kind == runs.KindDecision && e.Plan != nil && !e.Time.After(at) {
			return e.Plan.Largest()
		}
	}
	return asked.Largest()
}
