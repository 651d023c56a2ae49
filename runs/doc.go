// Package runs is a run on disk: a [Folder] with the journal of what happened and
// was decided, the metrics of every step, the status, the checkpoints and what was
// learned. One process at a time writes it, from [Open] to [Folder.Close]; anyone
// may read it meanwhile with [ReadJournal], [ReadMetrics] and [ReadStatus], which
// need no lock.
//
// A checkpoint is whole or absent, whatever is killed and whenever. What
// cannot be written is kept in memory, up to a limit, and written later.
package runs
