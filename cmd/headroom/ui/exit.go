package ui

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

// Exit is one row of the table of exit statuses.
type Exit struct {
	Code  int
	short string           // for the help
	Means string           // for the manual
	is    func(error) bool // nil matches every error that no other row matches
}

// Exits is the table of exit statuses, and the only place that assigns a number to an
// outcome. The help and the manual page print this table.
var Exits = []Exit{
	{0, "done", "done: the job is finished", func(err error) bool { return err == nil }},
	{1, "failed", "failed for a reason other than memory, such as a NaN or infinite loss, or a file that disappeared", nil},
	{2, "usage error", "usage or configuration error: nothing was started", IsUsage},
	{75, "interrupted", "interrupted: the same command continues the run", IsInterrupted},
	{120, "out of memory", "gave up, out of memory: the terminal and the journal say what does not fit and what would help", isOutOfMemory},
	{121, "out of memory for an unknown reason", "out of memory for a reason that could not be determined; the evidence is in the journal", isUnknown},
	{122, "no device", "the device is missing or was lost", isDevice},
	{Signalled, "killed or crashed", "killed by signal n, or crashed (134): the same command continues the run", func(error) bool { return false }},
}

// PassedOn says which status a run of a wrapped command ends with.
const PassedOn = "headroom run passes on the status of COMMAND, but 0 becomes 75 if COMMAND was asked to stop."

// Signalled is the code of the row for a headroom process that is killed by a signal, which no
// error represents. A shell reports this number plus the signal's. A crash ends with SIGABRT.
const Signalled = 128

// Label returns the status as the help and the manual show it.
func (e Exit) Label() string {
	if e.Code == Signalled {
		return "128+n"
	}
	return fmt.Sprint(e.Code)
}

// ExitStatus returns the exit status for the error that a headroom command returned.
func ExitStatus(err error) int {
	if child := (*ChildError)(nil); errors.As(err, &child) {
		return child.Code
	}
	rest := 1
	for _, e := range Exits {
		switch {
		case e.is == nil:
			rest = e.Code
		case e.is(err):
			return e.Code
		}
	}
	return rest
}

// ExitHelp returns the table of exit statuses as the help shows it: a few lines of text that
// begin with lead.
func ExitHelp(lead string) string {
	const tied = "\u00a0" // a non-breaking space
	var all []string
	for _, e := range Exits {
		all = append(all, strings.ReplaceAll(e.Label()+" "+e.short, " ", tied))
	}
	return strings.ReplaceAll(folded("   "+lead+" headroom's own: "+strings.Join(all, ", ")+".", 80, 3), tied, " ") + "\n"
}

// UsageError is a mistake in what the user wrote: a flag, an argument, a
// configuration. Nothing has been started or changed.
type UsageError struct {
	Err  error
	Hint string // the next step; may be empty
}

func (e *UsageError) Error() string { return e.Err.Error() }
func (e *UsageError) Unwrap() error { return e.Err }

// ChildError is an error with the status that headroom is to exit with. If the wrapped command
// failed, that is the command's own status.
type ChildError struct {
	Code  int
	Err   error
	Hint  string // the next step; may be empty
	Quiet bool   // there is nothing to add to what the command said

	Interrupted bool // the command died of SIGINT
}

func (e *ChildError) Error() string { return e.Err.Error() }
func (e *ChildError) Unwrap() error { return e.Err }

// Usagef returns a [UsageError] with a hint. The format is that of [fmt.Errorf].
func Usagef(hint, format string, args ...any) error {
	return &UsageError{fmt.Errorf(format, args...), hint}
}

// AsUsage returns err as a [UsageError], which the user can correct. It returns nil if err is
// nil, and err itself if it is a usage error already.
func AsUsage(err error) error {
	if err == nil || errors.As(err, new(*UsageError)) {
		return err
	}
	return &UsageError{Err: err}
}

// IsUsage reports whether nothing was started because of what the user wrote, or because the run is
// in use.
func IsUsage(err error) bool {
	var usage *UsageError
	var mismatch *harness.MismatchError
	var locked *runs.LockedError
	return errors.As(err, &usage) || errors.As(err, &mismatch) || errors.As(err, &locked)
}

// IsInterrupted reports whether the run was asked to stop.
func IsInterrupted(err error) bool {
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
