// Package rewrite recognises a training command and rewrites it for a smaller micro-batch, with
// the accumulation that keeps its effective batch exactly the same. It starts nothing, and writes
// nothing but what [Result.Write] says.
//
//	Recognise   finds the profile that fits a command: a Match
//	Asks        the plan that the command asks for now
//	To          the command for another plan, or the reason why that would train something else
//	Rehearse    the command as a short trial
//	Warnings    what could go wrong with the command as it is
package rewrite
