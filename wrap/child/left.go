package child

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"headroom/runs"
	"headroom/wrap/command"
)

// Left is a process that a command left running when it ended.
type Left struct {
	PID  int    `json:"pid"`
	Name string `json:"name"` // of its program, the first 15 bytes

	parent, group int
	start         uint64 // see process
}

// leftNamed bounds how many processes are named.
const leftNamed = 5

// LeftText names processes, as in "bash (pid 12) and rclone (pid 14)".
func LeftText(all []Left) string {
	var names []string
	for _, l := range all[:min(len(all), leftNamed)] {
		names = append(names, fmt.Sprintf("%s (pid %d)", l.Name, l.PID))
	}
	if more := len(all) - leftNamed; more > 0 {
		return strings.Join(names, ", ") + fmt.Sprintf(" and %d more", more)
	}
	if last := len(names) - 1; last > 0 {
		return strings.Join(names[:last], ", ") + " and " + names[last]
	}
	return strings.Join(names, "")
}

// LeftRunning says that the command has left processes running, which headroom leaves alone.
func LeftRunning(all []Left) string {
	if len(all) == 1 {
		return "the command left a process running: " + LeftText(all)
	}
	return fmt.Sprintf("the command left %d processes running: %s", len(all), LeftText(all))
}

// Split separates the processes that stand in the way of another attempt from those that do not.
// holds says what a process holds, or "". What such a process has started belongs to it.
func Split(all []Left, holds func(Left) string) (inTheWay, others []Left, why string) {
	held := map[int]bool{}
	for _, l := range all {
		if what := holds(l); what != "" {
			held[l.PID] = true
			if why == "" {
				why = what
			}
		}
	}
	for range all { // a child may come before its parent
		for _, l := range all {
			held[l.PID] = held[l.PID] || held[l.parent]
		}
	}
	for _, l := range all {
		if held[l.PID] {
			inTheWay = append(inTheWay, l)
		} else {
			others = append(others, l)
		}
	}
	return inTheWay, others, why
}

// FolderMark begins the entry in a command's environment that names the folder of its run. All
// processes of the command have it.
const FolderMark = "HEADROOM_FOLDER="

// Living returns a process of a run's command that goes on although the run's headroom was killed:
// the command itself or, if that has ended, one that it has started and that is part of its job, or
// runs its script in a session of its own, or holds a GPU, or writes the run's files, or takes the
// training's steps. It returns nil if there is none. folder is the run's, and s the newest status in
// it. After a headroom that was not killed, s has no command.
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
		return l.group == s.Command.Group || l.runsScript(s.Command.Script) || step != nil && step.PID == l.PID || l.Holds(places) != ""
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
