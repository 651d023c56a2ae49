package wrap

import (
	"context"
	"fmt"
	"slices"
	"time"

	"headroom/harness"
	"headroom/wrap/checkpoints"
	"headroom/wrap/child"
	"headroom/wrap/command"
)

// behind is what the attempts of a command have left running.
type behind struct {
	newest   []child.Left // what the newest attempt has left
	earlier  []child.Left // what earlier attempts have left, and headroom has left alone
	training []int        // PIDs of the processes of the newest attempt that are still training
	trace    *gpuTrace    // of the newest attempt
}

// clear makes room for another attempt: it ends what the newest attempt has left running and still
// holds a GPU or the run's files, or is still training, and waits until that attempt's GPU memory is
// free again. It leaves everything else alone. It returns a sentence about what it has ended, or
// "".
func (w *Wrapped) clear(ctx context.Context) string {
	var inTheWay []child.Left
	var what string
	if len(w.behind.newest) > 0 { // looking for checkpoints reads the disk
		gpus, places := w.behind.trace.holders(), w.places()
		inTheWay, w.behind.newest, what = child.Split(w.behind.newest, func(l child.Left) string {
			switch {
			case slices.Contains(gpus, l.PID):
				return "a GPU"
			case slices.Contains(w.behind.training, l.PID):
				return "the training, which it went on with"
			}
			return l.Holds(places)
		})
	}
	text := ""
	if len(inTheWay) > 0 {
		text = fmt.Sprintf("the command left %s running, and headroom ended it before the next start, since it held %s", child.LeftText(inTheWay), what)
		child.End(inTheWay, child.Grace, w.trouble)
	}
	if w.behind.trace != nil {
		for _, holder := range w.behind.trace.drain(ctx, harness.Sleep) {
			w.trouble(fmt.Errorf("%s still holds memory %v after the command ended", holder, drainPatience))
		}
	}
	return text
}

// leftText returns a sentence that names the processes which the command has left running, and
// which are still running, or "" if there are none.
func (w *Wrapped) leftText() string {
	all := slices.DeleteFunc(slices.Concat(w.behind.earlier, w.behind.newest), func(l child.Left) bool { return !l.Runs() })
	if len(all) == 0 {
		return ""
	}
	return child.LeftRunning(all)
}

// places returns the paths of the run's files: its folder, and where the command keeps its
// checkpoints. That is a folder if they have one of their own, or else the checkpoints themselves.
func (w *Wrapped) places() (all []string) {
	all = append(all, command.Resolved(w.Folder.Dir()))
	if w.Match == nil {
		return all
	}
	if place := checkpoints.Place(w.Match); place != "" && place != command.Resolved(w.Line.Dir) {
		return append(all, place)
	}
	found, err := checkpoints.Find(w.Match, time.Now(), w.past())
	if err != nil {
		return all // it is not known where they are
	}
	for _, c := range found.All {
		all = append(all, command.Resolved(w.Line.From(c.Path)))
	}
	return all
}
