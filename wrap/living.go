package wrap

import (
	"path"
	"slices"
	"strings"

	"headroom/runs"
	"headroom/wrap/command"
)

// folderMark begins the entry in a command's environment that names the folder of its run. All
// processes of the command have it.
const folderMark = "HEADROOM_FOLDER="

// Place returns the folder in which the command keeps its checkpoints, without symbolic links. It
// returns "" if that is not known.
func (m *Match) Place() string {
	root, err := m.root()
	if err != nil || m.Profile.Checkpoints.Glob == "" {
		return ""
	}
	folder, _ := path.Split(root + "/" + m.Profile.Checkpoints.Glob)
	for strings.ContainsAny(folder, `*?[\`) {
		folder, _ = path.Split(strings.TrimSuffix(folder, "/"))
	}
	return command.Resolved(m.Command.From(folder))
}

// Living returns a process of a run's command that goes on although the run's headroom was killed:
// the command itself or, if that has ended, one that it has started and that is part of its job, or
// holds a GPU, or writes the run's files, or takes the training's steps. It returns nil if there is
// none. folder is the run's, and s the newest status in it. After a headroom that was not killed, s
// has no command.
func Living(folder string, s runs.Status) *Left {
	if s.Command == nil || s.Command.Boot != bootID() {
		return nil
	}
	if l, ok := identified(*s.Command); ok {
		return &l
	}
	folder = command.Resolved(folder)
	step, places := runs.NewestProcessStep(folder), []string{folder}
	if s.Place != "" {
		places = append(places, s.Place)
	}
	all := marked(folderMark+folder, s.Command.Start)
	at := slices.IndexFunc(all, func(l Left) bool {
		return l.group == s.Command.Group || step != nil && step.PID == l.PID || l.holds(places) != ""
	})
	if at < 0 {
		return nil
	}
	return &all[at]
}
