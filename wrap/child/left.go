package child

import (
	"fmt"
	"strings"
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
