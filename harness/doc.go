// Package harness runs a training job to completion in whatever memory there is.
//
//	Session   a run's books: evidence, decisions, journal, status; runs nothing
//	Run       the native loop: makes steps with a Trainer and carries decisions out
//	Find      the largest micro-batch that fits, tried with whole steps
//	Trainer   what makes steps: one atomic step, one probe, save, load
//	Observer  what sees the device from outside; may be absent
//
// Start with [Begin] and [Run].
//
// # Promises
//
//   - Every step of a run is made of exactly Plan.Effective samples, and the
//     samples follow each other without a gap or an overlap. A trainer that
//     reports otherwise is stopped with a *[BrokenPromiseError].
//   - A step that ran out of memory is run again with the same samples. Nothing
//     else is ever retried: a loss that is NaN or infinite, a panic, any other
//     error ends the run.
//   - A device that is lost ends the process's part in the run with a
//     *[DeviceGoneError]. A new process may continue from the newest checkpoint, which
//     gives the same results.
//   - metrics.jsonl accounts for every step once: a checkpoint is declared only
//     after the lines up to it are on disk (a checkpoint without which work would be
//     lost is written even if the lines cannot be), and a run that continues from a
//     checkpoint cuts off the lines beyond it, since those steps are made again.
//     journal.jsonl is only ever appended to and also has the steps that were lost.
//   - A full disk does not end training. Only a checkpoint without which work
//     would be lost (at the end, on an interrupt, before a relaunch) is an error,
//     a *[CheckpointError].
package harness
