package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"headroom/cmd/headroom/ui"
	"headroom/configs"
	"headroom/runs"
	"headroom/wrap"
	"headroom/wrap/command"
	"headroom/wrap/nodes"
	"headroom/wrap/rewrite"
)

// leastGone is the shortest time of silence after which a node may be taken for gone.
const leastGone = time.Second

// nodeOf returns which of several nodes this one is, the zero Place if the command of r runs on one alone or all of
// it is started from here.
func nodeOf(line command.Line, r request) (nodes.Place, error) {
	if r.WatchOnly && r.node == "" {
		return nodes.Place{}, nil
	}
	place, together, err := nodes.Find(line, r.node)
	if err != nil {
		return nodes.Place{}, ui.Usagef("--node R/N says which, as in --node 0/2 on the first of two; --node off looks after this node's part alone", "%w", err)
	}
	if !together {
		place = nodes.Place{}
	}
	return place, nil
}

// gather opens this node's folder of a run on several nodes, and takes over what earlier processes of the run have
// recorded. done says that the run is finished already.
//
// All nodes must come to the same folder by themselves, so the user's name, or the engine's for the job, names
// it; a number, as other runs have, would depend on which node is first.
func (w *wrapped) gather(u *ui.UI) (done bool, err error) {
	name, dir, err := w.runOfAll()
	if err != nil {
		return false, err
	}
	if done, err := w.continues(dir); done || err != nil {
		if done {
			u.Say("%s is finished already; another --name makes another run", dir)
		}
		return done, err
	}
	own := dir
	if w.place.Node > 0 {
		own = filepath.Join(dir, runs.NodesFolder, fmt.Sprint(w.place.Node))
	}
	if err := os.MkdirAll(filepath.Join(dir, runs.NodesFolder), 0o755); err != nil {
		return false, ui.Usagef("set HEADROOM_RUNS_DIR to a folder that every node may write to", "create the run's folder: %v", err)
	}
	if err := alone(own, false); err != nil {
		return false, err
	}
	if w.Folder, err = w.begun(own); err != nil {
		return false, ui.AsUsage(err)
	}
	w.request.Name = name
	if w.place.Node == 0 && w.Folder.Tally().Attempts > 0 && w.Match != nil {
		if err := w.earlier(); err != nil {
			return false, errors.Join(err, w.Folder.Close())
		}
	}
	return false, nil
}

// runOfAll returns the name and the folder of the run, which are the same on all nodes.
func (w *wrapped) runOfAll() (name, dir string, err error) {
	name = w.request.Name
	if job := onlyOfNames(nodes.Job(w.Line)); name == "" && job != "" {
		name = nameFor(w.Line.Args) + "-" + job
	}
	switch {
	case name == "":
		return "", "", ui.Usagef("give --name, the same on all nodes", "this is node %d of %d, and nothing names the run that it belongs to", w.place.Node, w.place.Of)
	case !configs.IsName(name):
		return "", "", ui.Usagef("", "--name %s: not a valid name for a folder; allowed: %s", name, configs.NamesAllowed)
	}
	return name, filepath.Join(configs.RunsDir(), name), nil
}

// continues checks whether the command belongs to the run in dir, if there is one.
// done says that the run is finished already.
func (w *wrapped) continues(dir string) (done bool, err error) {
	kept, err := configs.LoadCommand(filepath.Join(dir, "run.yaml"))
	if missing(err) {
		return false, nil
	}
	if err != nil {
		return false, ui.AsUsage(err)
	}
	then := wrap.New(command.Line{Args: kept.Args, Env: w.Line.Env, Dir: w.Line.Dir}, nil, rewrite.Given{Files: os.DirFS("/"), Knobs: kept.Knobs, World: w.request.World})
	if nameFor(kept.Args) != nameFor(w.Line.Args) || then.Match != nil && w.Match != nil && then.Asked.Effective != w.Asked.Effective {
		return false, ui.Usagef("give a different --name", "%s is a run of another training: %v", dir, command.Line{Args: kept.Args})
	}
	status, err := runs.ReadStatus(dir)
	return err == nil && status.State == runs.StateDone, nil
}

// join makes this node take part in the run, if it is one of several.
func (w *wrapped) join(u *ui.UI) (err error) {
	if w.place.Of == 0 {
		return nil
	}
	dir := w.Folder.Dir()
	if w.place.Node == 0 {
		dir = filepath.Join(dir, runs.NodesFolder)
	} else {
		dir = filepath.Dir(dir)
	}
	w.Nodes, err = nodes.Join(w.place, nodes.Options{Dir: dir, Trains: w.trains(), Times: nodes.TimesFor(w.request.gone), Say: u.Warn})
	return err
}

// trains says what has to be the same on all nodes: the script, and its batch if that is known.
func (w *wrapped) trains() string {
	if w.Match == nil {
		return nameFor(w.Line.Args)
	}
	return fmt.Sprintf("%s, %v, on %d ranks", cmp.Or(w.Match.Profile.Name, "plain"), w.Asked, w.Asked.World)
}

// lostNode says why the run has ended, if that is because of another node.
func (w *wrapped) lostNode(u *ui.UI, err error) {
	var lost *nodes.LostError
	var over *nodes.OverError
	switch {
	case errors.As(err, &lost) && lost.Never:
		u.Warn("%v: nothing of it is in %s, which must be on storage that all nodes share; without that, one headroom in front of the launcher looks after all nodes, as in headroom run -- srun torchrun …", lost, lost.Dir)
	case errors.As(err, &lost):
		u.Warn("%v", lost)
	case errors.As(err, &over):
		u.Warn("%v", over)
	}
}
