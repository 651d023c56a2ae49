package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"headroom/cmd/headroom/ui"
	"headroom/configs"
	"headroom/job"
	"headroom/notify"
	"headroom/recovery"
	"headroom/runs"
	"headroom/worker"
	"headroom/wrap"
	"headroom/wrap/checkpoints"
	"headroom/wrap/child"
	"headroom/wrap/command"
	"headroom/wrap/nodes"
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
	w.said.verbose = c.Bool("verbose")
	if w.to, err = receivers(r.Notify); err != nil {
		return err
	}
	if c.Bool("dry-run") {
		return u.Answer(explained(w, u.Now()).brief())
	}
	if w.lost != nil {
		return w.lost
	}
	if err := w.Line.Startable(); err != nil { // checked first, so that no folder is made for a mistyped command
		return notStarted(w.Line, err)
	}
	if err := w.beforehand(u, c, ""); err != nil {
		return err
	}
	if w.place.Of > 0 {
		if done, err := w.gather(u); done || err != nil {
			return err
		}
	} else {
		if w.Folder, err = w.folder(r.Name); err != nil {
			return err
		}
		w.made = true
	}
	live.serve(u, w.Folder.Dir())
	return w.lead(c.Context, u)
}

// wrapped is a run of the user's command, and what has been said about it.
type wrapped struct {
	job.Command
	request request
	place   nodes.Place // which of several nodes this is; zero if this headroom looks after the whole command
	lost    error       // why it is not known which node this is; nil if it is
	made    bool        // the run's folder is new, and no other headroom uses it
	to      []notify.Receiver
	said    reporter
}

// recognised finds out what is known about the command of r. It is not an error if nothing
// is known: then the command is run as it is, and never changed.
func recognised(r request) (*wrapped, error) {
	profiles, name, err := profilesFor(r.Profile)
	if err != nil {
		return nil, ui.AsUsage(err)
	}
	line := command.Line{Args: r.Args, Env: os.Environ(), Dir: r.Dir}
	place, lost := nodeOf(line, r)
	if place.Of > 0 && r.World == 0 && nodes.Alone(line) {
		r.World = place.Of
	}
	known := wrap.New(line, profiles, rewrite.Given{Files: os.DirFS("/"), Profile: name, Knobs: r.Knobs, World: r.World})
	known.Trust, known.Hang, known.Restart, known.Leave, known.Free = r.Trust, r.Hang, r.RestartHung, r.RestartLeaking, r.Free
	known.Runs = configs.RunsDir()
	w := &wrapped{request: r, place: place, lost: lost, Command: job.Command{Wrapped: known, Policy: recovery.Policy{Relaunches: 3, Waits: 10}, Version: readBuild().named()}}
	w.Snapshot = r.Snapshot
	if !r.NoWorker {
		w.Worker = &worker.Options{Mode: worker.Armed, Version: readBuild().Version, Spill: r.Spill, Trackers: trackersOf(r.Trackers)}
		if r.Observe || r.WatchOnly {
			w.Worker.Mode = worker.Observe
		}
	}
	switch {
	case r.WatchOnly:
		w.Match, w.Why = nil, errors.New("--watch-only was given")
		return w, nil
	case w.Why != nil && (len(r.Knobs) > 0 || r.Profile != ""): // the user said how to read the command, and that was wrong
		return nil, ui.AsUsage(r.placed(w.Why))
	case w.Why != nil && len(r.Allow) > 0:
		return nil, ui.Usagef("name the command's profile with --profile, or leave out --allow", "--allow %s: not known, unless a profile names it, and no profile is known for this command: %v", r.Allow[0], w.Why)
	case w.Why != nil:
		return w, nil
	}
	w.Policy.Host, w.Policy.Recompute, err = rewrite.Fallbacks(w.Match, r.Allow)
	w.Policy.Able = recovery.Able{Recompute: w.Policy.Recompute, Eval: w.Asked.Eval > 0}
	return w, ui.AsUsage(err)
}

// trackersOf returns the trackers that the value of --trackers names; W&B's if there is none.
func trackersOf(given string) []string {
	if given == "off" {
		return nil
	}
	return strings.Split(cmp.Or(given, "wandb"), ",")
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

// folder creates a new folder for the run. The same command given again is a new run, even while
// the old one is in progress. If asked is not "", it is the name that the user asks for, and no run
// may have it yet.
func (w *wrapped) folder(asked string) (*runs.Folder, error) {
	if asked != "" && !configs.IsName(asked) {
		return nil, ui.Usagef("", "--name %s: not a valid name for a folder; allowed: %s", asked, configs.NamesAllowed)
	}
	dir := configs.RunsDir()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, ui.Usagef("set HEADROOM_RUNS_DIR to a folder that you may write to", "create the runs folder: %v", err)
	}
	base := cmp.Or(asked, nameFor(w.Line.Args))
	name := base
	for n := 1; ; {
		err := os.Mkdir(filepath.Join(dir, name), 0o755) // the process that makes the folder has the name
		if err == nil {
			break
		}
		if !errors.Is(err, os.ErrExist) {
			return nil, ui.AsUsage(fmt.Errorf("create the run's folder: %w", err))
		}
		if asked != "" {
			return nil, ui.Usagef("give a different --name, or none", "there is already a run %s%s", filepath.Join(dir, name), inUse(filepath.Join(dir, name)))
		}
		n = max(n, newestNumber(dir, base)) + 1
		name = fmt.Sprintf("%s-%d", base, n)
	}
	folder, err := w.begun(filepath.Join(dir, name))
	if errors.As(err, new(*runs.LockedError)) {
		return nil, ui.Usagef("give a different --name, or none", "%w", err)
	}
	if err != nil { // nothing was started, and so nothing of it is left behind
		for _, made := range []string{"run.yaml", "secrets.json", "checkpoints", "logs", "journal.jsonl", "metrics.jsonl", "lock", ""} {
			_ = os.Remove(filepath.Join(dir, name, made)) // removes no folder with anything in it
		}
		return nil, ui.Usagef("make room, or set HEADROOM_RUNS_DIR to a folder on another disk", "%w", err)
	}
	return folder, nil
}

// begun opens the new folder of the run and writes the command into it.
func (w *wrapped) begun(path string) (*runs.Folder, error) {
	folder, err := runs.Open(path)
	if err != nil {
		return nil, err
	}
	kept := w.request.Command
	kept.Name = "" // the folder has the name; running this file makes another run
	kept.Args = w.Line.Masked()
	kept.Notify = nil // in another file, because there are secrets in it
	text, err := kept.YAML()
	if err == nil {
		err = errors.Join(folder.KeepSecrets(w.Line.Args, kept.Args, w.request.Notify), folder.FirstConfig(text))
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

// lead carries out the run in its folder, closes the folder and reports the outcome.
func (w *wrapped) lead(ctx context.Context, u *ui.UI) error {
	w.said.UI, w.Reporter = u, &w.said
	w.said.notes = notifier(u, w.Folder.Dir(), w.to)
	defer w.said.notes.Close()
	u.Screen.Breaks = w.BreakLine
	if err := w.join(u); err != nil {
		return errors.Join(err, w.Folder.Close())
	}
	result, code, err := w.Run(ctx)
	if lost := w.Folder.Close(); lost != nil { // that does not change how the command ended
		u.Warn("%v", lost)
	}
	if errors.As(err, new(*checkpoints.KeptElsewhereError)) || errors.As(err, new(*nodes.MisfitError)) {
		err = ui.AsUsage(err)
	}
	return w.ended(u, result, code, err)
}
