package child

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"headroom/runs"
	"headroom/wrap/command"
)

// FolderMark begins the entry in a command's environment that names the folder of its run. All
// processes of the command have it.
const FolderMark = "HEADROOM_FOLDER="

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
	all := marked(FolderMark+folder, s.Command.Start)
	at := slices.IndexFunc(all, func(l Left) bool {
		return l.group == s.Command.Group || step != nil && step.PID == l.PID || l.Holds(places) != ""
	})
	if at < 0 {
		return nil
	}
	return &all[at]
}

// Rival returns an error if the command of another run than that in dir, whose headroom was killed,
// still runs and keeps its checkpoints in the folder place; all is the folder of all runs. No claim
// tells of such a command, since claims end with headroom.
func Rival(all, dir, place string) error {
	if place == "" {
		return nil
	}
	folders, _ := os.ReadDir(all) // if it cannot be read, none is known
	for _, f := range folders {
		other := filepath.Join(all, f.Name())
		if other == filepath.Clean(dir) {
			continue
		}
		s, err := runs.ReadStatus(other)
		if err != nil || s.State != runs.StateStale || s.Place != place {
			continue
		}
		if living := Living(other, s); living != nil {
			return fmt.Errorf("the command of run %s, whose headroom was killed, still runs and keeps its checkpoints in %s, too: %s", f.Name(), place, LeftText([]Left{*living}))
		}
	}
	return nil
}
