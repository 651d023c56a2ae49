// Package runs keeps a run on disk, in a [Folder]. The folder holds a journal of events
// and decisions, the metrics of every step, the status, the checkpoints and what was
// learned about memory. One process at a time writes to it, from [Open] to
// [Folder.Close]. Anyone may read it meanwhile with [ReadJournal], [ReadMetrics] and
// [ReadStatus], which need no lock.
//
// A checkpoint is either whole or absent, even if the process is killed while it writes
// one. Lines of the journal and of the metrics that cannot be written are kept in
// memory, up to a limit, and written later.
package runs
