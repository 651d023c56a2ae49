// Package wrap runs any training command under headroom. It starts the command in such a
// way that the command cannot tell the difference, and works out why it ended from what
// it left behind. If memory ran out, it starts the command again from its newest complete
// checkpoint, with a smaller micro-batch and the accumulation that keeps the effective
// batch. The packages below it each know one part of that; this one puts them together.
//
//	Wrapped   a command that is ready to run, with what is known about it
//	          Run makes one attempt after another; an attempt lasts from a start of the command to its end
//	          Explain reports all that is known before a run, and what could go wrong
//	Inside    what happens inside the command's processes: prepares and completes each attempt
//	Reporter  is told what happens
//	Trials    tries a command out for a few steps; Find searches its micro-batches with them
package wrap
