// Package wrap runs any training command under headroom. It starts the command in such a
// way that the command cannot tell the difference, and works out why it ended from what
// it left behind. If memory ran out, it starts the command again from its newest complete
// checkpoint, with a smaller micro-batch and the accumulation that keeps the effective
// batch. The packages below it each know one part of that; this one puts them together.
//
//	Run       runs one life of a command after another
//	Wrapped   a command that is ready to run, with what is known about it: the functions that Run needs
//	Trials    tries a command out for a few steps; Find searches its micro-batches with them
//	Explain   reports all that is known about a command before it runs, and what could go wrong
package wrap
