package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"headroom/device"
	"headroom/harness"
	"headroom/job"
	"headroom/memory"
	"headroom/runs"
)

// exit is one row of the table of exit statuses.
type exit struct {
	code  int
	short string           // for the help
	means string           // for the manual
	is    func(error) bool // nil matches every error that no other row matches
}

// statuses is the table of exit statuses, and the only place that assigns a number to an
// outcome. The help and the manual page print this table.
var statuses = []exit{
	{0, "done", "done: the job is finished", func(err error) bool { return err == nil }},
	{1, "failed", "failed for a reason other than memory, such as a NaN or infinite loss, or a file that disappeared", nil},
	{2, "usage error", "usage or configuration error: nothing was started", isUsage},
	{75, "interrupted", "interrupted: the same command continues the run", isInterrupted},
	{120, "out of memory", "gave up, out of memory: the terminal and the journal say what does not fit and what would help", isOutOfMemory},
	{121, "out of memory for an unknown reason", "out of memory for a reason that could not be determined; the evidence is in the journal", isUnknown},
	{122, "no device", "the device is missing or was lost", isDevice},
	{signalled, "killed or crashed", "killed by signal n, or crashed (134): the same command continues the run", func(error) bool { return false }},
}

// passedOn says which status a run of a wrapped command ends with.
const passedOn = "headroom run passes on the status of COMMAND, but 0 becomes 75 if COMMAND was asked to stop."

// signalled is the code of the row for a headroom process that is killed by a signal, which no
// error represents. A shell reports this number plus the signal's. A crash ends with SIGABRT.
const signalled = 128

// label returns the status as the help and the manual show it.
func (e exit) label() string {
	if e.code == signalled {
		return "128+n"
	}
	return fmt.Sprint(e.code)
}

// exitStatus returns the exit status for the error that a headroom command returned.
func exitStatus(err error) int {
	if child := (*childError)(nil); errors.As(err, &child) {
		return child.code
	}
	rest := 1
	for _, e := range statuses {
		switch {
		case e.is == nil:
			rest = e.code
		case e.is(err):
			return e.code
		}
	}
	return rest
}

// exitHelp returns the table of exit statuses as the help shows it: a few lines of text that
// begin with lead.
func exitHelp(lead string) string {
	const tied = "\u00a0" // a non-breaking space
	var all []string
	for _, e := range statuses {
		all = append(all, strings.ReplaceAll(e.label()+" "+e.short, " ", tied))
	}
	return strings.ReplaceAll(folded("   "+lead+" headroom's own: "+strings.Join(all, ", ")+".", 80, 3), tied, " ") + "\n"
}

// usageError is a mistake in what the user wrote: a flag, an argument, a
// configuration. Nothing has been started or changed.
type usageError struct {
	err  error
	hint string // the next step; may be empty
}

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// usagef returns a [usageError] with a hint. The format is that of [fmt.Errorf].
func usagef(hint, format string, args ...any) error {
	return &usageError{fmt.Errorf(format, args...), hint}
}

// asUsage returns err as a [usageError], which the user can correct. It returns nil if err is
// nil, and err itself if it is a usage error already.
func asUsage(err error) error {
	if err == nil || errors.As(err, new(*usageError)) {
		return err
	}
	return &usageError{err: err}
}

func isUsage(err error) bool {
	var usage *usageError
	var mismatch *harness.MismatchError
	var locked *runs.LockedError
	return errors.As(err, &usage) || errors.As(err, &mismatch) || errors.As(err, &locked)
}

func isInterrupted(err error) bool {
	return errors.Is(err, harness.ErrInterrupted) || errors.Is(err, context.Canceled)
}

func isOutOfMemory(err error) bool {
	cause, ok := causeOf(err)
	return ok && cause != memory.Unknown
}

func isUnknown(err error) bool {
	cause, ok := causeOf(err)
	return ok && cause == memory.Unknown
}

// causeOf returns why memory ran out. It returns false if err is not about memory.
func causeOf(err error) (memory.Cause, bool) {
	var gave *harness.GaveUpError
	if errors.As(err, &gave) {
		if gave.Decision.Verdict == nil {
			return memory.Unknown, true
		}
		return gave.Decision.Verdict.Cause, true
	}
	var oom *memory.OutOfMemoryError
	if errors.As(err, &oom) {
		return memory.Model, true
	}
	return "", false
}

func isDevice(err error) bool {
	var lost *device.GoneError
	return errors.Is(err, job.ErrNoDevice) || errors.As(err, &lost)
}
