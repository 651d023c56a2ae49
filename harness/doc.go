// Package harness runs a training job to its end in whatever memory there is.
//
// Start with [Run]. It drives a [Trainer] step by step under a [Plan], asks
// [Decide] what to do when an allocation fails, carries the answer out, and
// writes what happened into a [Folder]. The parts:
//
//	Plan      how an effective batch is cut into micro-batches; pure
//	Decide    the only place that chooses a remedy; pure
//	Trainer   what makes steps: one atomic step, one probe, save, load
//	Watch     what sees the device from outside; may be absent
//	Folder    journal, metrics, status, checkpoints, logs; one writer at a time
//	Run       the shell around them: attempts, retries, searches, waits
//
// What Run promises:
//
//   - Every step of a run is made of exactly Plan.Effective samples, and the
//     samples follow each other without a gap or an overlap. A trainer that
//     says otherwise is stopped with a *[BrokenPromise].
//   - A step that ran out of memory is run again with the same samples. Nothing
//     else is ever retried: a loss that is no number, a panic, any other error
//     ends the run.
//   - A device that is lost ends the process's part in the run with a
//     *[DeviceLost]. A new process may go on from the newest checkpoint, which
//     gives the same results; [Decide] grants three in a row without a new one.
//   - Faults that the device's driver reports and, every half minute, how the
//     device is go into the journal, if there is a [Watch].
//   - A checkpoint is whole or absent. Whatever is killed at whatever moment,
//     the next Run goes on from the newest whole one.
//   - metrics.jsonl accounts for every step once: a checkpoint is declared only
//     after the lines up to it are on disk, and a run that goes on from it cuts
//     the lines beyond it, since those steps are made again. journal.jsonl is
//     only ever appended to and also tells of the steps that were lost.
//   - A full disk does not end training. What cannot be written is reported
//     once, kept in memory within a bound, and tried again. Only a checkpoint
//     without which work would be lost (at the end, on an interrupt, before a
//     relaunch) is an error, a *[CheckpointError].
//
// While a run writes its folder, anyone may read it with [ReadJournal],
// [ReadMetrics] and [ReadStatus]; they need no lock.
package harness
