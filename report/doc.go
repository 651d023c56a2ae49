// Package report draws the report of a run: what a person reads in the morning.
//
// Start with [New]. It takes what a run left behind (its journal and its metrics) and
// works out the answers: did the run finish, was the effective batch kept, what failed
// and what was done about it, how much memory was used, how fast it went, and what to
// change next. New is pure: it reads no clock and no file, so the same input gives the
// same report.
//
//	r := report.New(report.Input{Name: "gpt", Entries: entries, Steps: steps, Planned: 2000})
//	err := r.Write("runs/gpt") // report.html, report.md and the pictures beside it
//
// The report does not take the run's word for anything. It computes from the metrics,
// step by step, whether the effective batch was kept ([Accounting]), and says so loudly
// if it was not. What cannot be checked is called unchecked.
//
// The steps of a run were made by headroom's own trainer or by a command. One page serves
// both: what differs is data, in body.go and commands.go, which every other file reads.
//
// The page is one file. It loads nothing, runs no script, follows the reader's light or
// dark setting and can be printed. It stays small however long the run was. A picture has
// at most a few thousand points, which include the extreme values ([Report.Pictures]),
// and a long ledger is cut in the middle.
//
// The report treats everything in the journal as plain text, and escapes it in HTML, SVG
// and Markdown.
package report
