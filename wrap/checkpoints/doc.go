// Package checkpoints finds the checkpoints that a command has left on disk, and judges them:
// which is the newest, whether it is whole, and whether it is of this run or of another one that
// writes to the same place.
//
//	Find      the checkpoints of a command, in order; Past says what is known of them otherwise
//	Watch     sees which processes write them
//	Announce  tells other headroom processes where a run keeps its checkpoints
package checkpoints
