// Command headroom runs a training job to completion in whatever GPU memory there
// is.
//
//	headroom run -- COMMAND          any training command
//	headroom explain -- COMMAND      what is known about it, and what could go wrong
//	headroom run gpt                 train a preset
//	headroom run my.yaml --set batch.micro=8
//	headroom find my.yaml            the largest micro-batch that fits, and a plan
//	headroom doctor                  what would go wrong tonight
//	headroom status                  every run and how far it has got
//	headroom report NAME             draw a run's report again
//
// The package is the shell around the packages below it: it reads the command
// line (one file per command), wires a configuration to harness.Run, shows what
// happens and turns the outcome into an exit status. What a user sees is in the
// package ui below: every line, the terminal, the one table of exit statuses.
// Nothing is decided here.
//
// signals.go answers requests to stop: after the first signal headroom waits for
// the run, after the second one it abandons the run (leave.go). crash.go makes sure
// that a crash can be told apart from every other end, by its status and by a trace.
//
// Messages go to stderr. stdout belongs to what was asked for: the answer of a
// command, or one JSON object per line with --json.
package main
