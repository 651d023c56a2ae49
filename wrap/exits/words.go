package exits

import (
	"fmt"
	"slices"
	"strings"

	"headroom/wrap/command"
)

// Describe says in one sentence how an attempt ended.
func Describe(o Outcome, exit command.Exit) string {
	why := strings.Join(o.Reasons, "; ")
	switch {
	case o.Kind == Done || why == "":
		return Ending(o, exit)
	case o.Kind == Failed && exit.Signal != 0: // the reasons name the signal
		return fmt.Sprintf("after %s, %s", Lasting(exit.Seconds), why)
	case o.Kind == Failed: // the reasons say so
		return lasted(exit) + ": " + why
	}
	return Ending(o, exit) + ": " + why
}

// InShort says in one sentence how much memory was missing in an attempt, and where, in place of
// the error that the command has printed. It returns "" if that is not known.
func InShort(o Outcome, exit command.Exit) string {
	if !o.Kind.Memory() || o.Evidence == nil || o.Evidence.Failure.Requested <= 0 {
		return ""
	}
	f := o.Evidence.Failure.Measured()
	f.Micro = 0 // what is known of it is in the hint
	on := ""
	if o.Rank != rankUnknown {
		on = fmt.Sprintf(" on rank %d", o.Rank)
	}
	text := fmt.Sprintf("%s: %s%s%s%s", lasted(exit), o.Kind, on, strings.TrimPrefix(f.Error(), "out of memory"), bracketed(o.Where))
	for _, reason := range o.Reasons {
		if !slices.Contains(o.quotes, reason) {
			text += "; " + reason
		}
	}
	return text
}

// bracketed returns the user's line where something happened in a form that can follow a
// sentence, or "" if where is "".
func bracketed(where string) string {
	if where == "" {
		return ""
	}
	return " (" + where + ")"
}

// Ending returns a text that says how an attempt ended, without the reasons.
func Ending(o Outcome, exit command.Exit) string { return fmt.Sprintf("%s: %s", lasted(exit), o.Kind) }

// lasted returns a text with the exit status or signal of an attempt, and how long it lasted.
func lasted(exit command.Exit) string {
	how := fmt.Sprintf("exit status %d", exit.Code)
	if exit.Signal != 0 {
		how = fmt.Sprintf("killed by signal %d (%v)", int(exit.Signal), exit.Signal)
	}
	return fmt.Sprintf("%s after %s", how, Lasting(exit.Seconds))
}

// Lasting formats seconds the way people say them.
func Lasting(seconds float64) string {
	switch {
	case seconds < 90:
		return fmt.Sprintf("%.0f s", seconds)
	case seconds < 90*60:
		return fmt.Sprintf("%.0f min", seconds/60)
	}
	return fmt.Sprintf("%.1f h", seconds/3600)
}
