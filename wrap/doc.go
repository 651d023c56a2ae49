// Package wrap runs any training command under headroom. It starts the command in such a
// way that the command cannot tell the difference, and works out why it ended from what
// it left behind. If memory ran out, it starts the command again from its newest complete
// checkpoint, with a smaller micro-batch and the accumulation that keeps the effective
// batch.
//
//	Command   what the user typed
//	Child     one life of a Command: one execution of it, from start to end
//	Exit      how a life ended
//	Classify  turns an Exit into an Outcome: done, out of memory, failed, …; pure
//	Profile   what is known about a framework's knobs, its checkpoints and how it resumes
//	Rewrite   turns a Command and a Plan into the command to start next; writes nothing
//	Explain   reports all that is known about a Command before it runs, and what could go wrong
package wrap
