package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/urfave/cli/v2"

	"headroom/cmd/headroom/ui"
	"headroom/configs"
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
		Flags: append(append(webFlags(), notifyFlag()), boolFlag("verbose", "show the log, and every checkpoint"),
			boolFlag("trust", "assume what headroom cannot prove about the command")),
		Action: func(c *cli.Context) error { return resumeAction(u, c) },
	}
	command.BashComplete = completeFlags(command, runNames)
	return command
}

func resumeAction(u *ui.UI, c *cli.Context) error {
	u.Message = os.Getenv("HEADROOM_TERMINATION_LOG")
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
	if _, err := os.Stat(filepath.Join(dir, runs.NodesFolder)); err == nil {
		return ui.Usagef("headroom run --name "+filepath.Base(dir)+" … on every node, as before", "%s is a run on several nodes: they continue it together", dir)
	}
	if err := child.Rival(w.Runs, dir, checkpoints.Place(w.Match)); err != nil {
		return ui.Usagef("wait for it, or end it", "%w", err)
	}
	live, err := openWeb(c)
	if err != nil {
		return err
	}
	defer live.close()
	w.said.verbose = c.Bool("verbose")
	if err := w.prepare(u, c, dir); err != nil {
		return err
	}
	if w.Folder, err = runs.Open(dir); err != nil {
		return ui.AsUsage(err)
	}
	err = errors.Join(alone(dir, true), finished(dir, w.Line.Args)) // once more, now that nobody else can start it
	if err == nil {
		err = w.earlier()
	}
	if err != nil {
		return errors.Join(err, w.Folder.Close())
	}
	live.serve(u, dir)
	return w.lead(c.Context, u)
}

// prepare does what has to be done before the folder of a run that goes on is opened.
func (w *wrapped) prepare(u *ui.UI, c *cli.Context, dir string) error {
	given, err := told(c, w.request.Notify)
	if err != nil {
		return err
	}
	if w.to, err = receivers(given); err != nil {
		return err
	}
	return w.beforehand(u, c, dir)
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
		err = ui.Usagef("start it with headroom run", "nothing is known about the command, so it cannot be continued: %v", w.Why)
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
	kept.Args, kept.Notify = words, runs.Notify(dir)
	return request{Command: *kept, file: path}, nil
}

// earlier takes over what the run's earlier processes recorded. It returns a usage error if the
// newest checkpoint is not theirs.
func (w *wrapped) earlier() error {
	if err := w.Recall(); err != nil {
		return fmt.Errorf("resume: %w", err)
	}
	if err := w.Own(w.place.Of > 0); err != nil {
		return ui.Usagef("move that checkpoint elsewhere to continue from this run's own checkpoint; or start the command with headroom run, and name that checkpoint in the command", "%w", err)
	}
	return nil
}
