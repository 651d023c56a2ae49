// Package wrap runs any training command under headroom: it starts the command so
// that it cannot tell the difference, works out from what it left behind why it ended,
// and starts it again from its newest complete checkpoint with a smaller
// micro-batch and the accumulation that keeps the effective batch.
//
//	Command   what the user typed; Child, one life of it; Exit, how that ended
//	Classify  an Exit → an Outcome: done, out of memory, failed; pure
//	Profile   what is known about a framework's knobs, checkpoints and resume
//	Rewrite   a Command and a Plan → the command to start next; pure
//	Explain   all that is known about a Command before it runs, and what could go wrong
package wrap
