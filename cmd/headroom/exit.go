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
	is    func(error) bool // nil matches every error that no other row does
}

// exits is the only place where an outcome becomes a number. The help and the
// manual page are printed from it.
var exits = []exit{
	{0, "done", "done: the job is finished", func(err error) bool { return err == nil }},
	{1, "failed", "failed for a reason other than memory: the loss became NaN or infinite, or a file disappeared", nil},
	{2, "usage error", "usage or configuration error: nothing was started", isUsage},
	{75, "interrupted", "interrupted: the same command continues the run", isInterrupted},
	{120, "out of memory", "gave up, out of memory: the terminal and the journal say what does not fit and what would help", isOutOfMemory},
	{121, "out of memory for an unknown reason", "out of memory for a reason that could not be determined; the evidence is in the journal", isUnknown},
	{122, "no device", "the device is missing or was lost", isDevice},
	{signalled, "killed or crashed", "killed by signal n, or crashed (134): the same command continues the run", func(error) bool { return false }},
}

// passedOn says which status a run of a wrapped command ends with.
const passedOn = "headroom run passes on the status of COMMAND, but 0 becomes 75 if COMMAND was asked to stop."

// signalled is the code of the row for ends that no error represents: a shell adds the
// signal's number to it, and a crash is a SIGABRT.
const signalled = 128

// label is the status as the tables name it.
func (e exit) label() string {
	if e.code == signalled {
		return "128+n"
	}
	return fmt.Sprint(e.code)
}

// exitStatus is the exit status for what a command returned.
func exitStatus(err error) int {
	if child := (*childError)(nil); errors.As(err, &child) {
		return child.code
	}
	rest := 1
	for _, e := range exits {
		switch {
		case e.is == nil:
			rest = e.code
		case e.is(err):
			return e.code
		}
	}
	return rest
}

// exitHelp is the table as the help shows it, in a few lines that begin with lead.
func exitHelp(lead string) string {
	const tied = "\u00a0" // a space at which no line is broken
	var all []string
	for _, e := range exits {
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

// usagef is a usageError with a hint.
func usagef(hint, format string, args ...any) error {
	return &usageError{fmt.Errorf(format, args...), hint}
}

// asUsage marks err, if there is one, as the user's to correct. An error that is already
// marked keeps its hint.
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

// causeOf is why memory ran out, if err says that it did.
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
