// Package report draws the report of a run: what a person reads in the morning.
//
// Start with [New]. It reads what a run left behind (its journal and its
// metrics) and works out the answers: did it finish, was the effective batch
// kept, what failed and what was done about it, how much memory was used, how
// fast it went, and what to change next. New is pure: it reads no clock and no
// file, so the same input gives the same report.
//
//	r := report.New(report.Input{Name: "gpt", Entries: entries, Steps: steps, Planned: 2000})
//	err := r.Write("runs/gpt") // report.html, report.md and the pictures beside it
//
// Nothing in a report is a claim copied from the run. Whether the effective batch
// was kept is computed from the metrics, step by step ([Accounting]), and the report
// says so loudly if it was not; what cannot be checked is called unchecked.
//
// The page is one file. It loads nothing, runs no script, follows the reader's
// light or dark setting, can be printed, and stays small however long the run was: a
// picture has at most a few thousand points ([Report.Pictures]), which are the
// extremes of the steps that they represent, and a long ledger is cut in the middle.
//
// The report treats whatever the journal holds as plain text, and escapes it in
// HTML, SVG and Markdown alike.
package report
