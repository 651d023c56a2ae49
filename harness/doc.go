// Package harness runs a training job to completion in whatever memory there is.
//
//	Session   keeps the records of a run: evidence, decisions, journal, status
//	Journal   the part of a Session for those who only see what happens, from any goroutine
//	Run       the native loop: runs steps with a Trainer and carries out decisions
//	Find      finds the largest micro-batch that fits, and tries it with whole steps
//	Trainer   trains the model: runs atomic steps and probes, saves and loads state
//	Observer  watches the device from outside the trainer; may be absent
//
// Start with [Begin] and [Run].
//
// # Promises
//
//   - Every step of a run takes exactly Plan.Effective samples, and the samples of
//     successive steps follow each other without a gap or an overlap. If a trainer
//     reports otherwise, the run stops with a *[BrokenPromiseError].
//   - A step that ran out of memory is run again with the same samples. Nothing
//     else is ever retried: a loss that is NaN or infinite, a panic or any other
//     error ends the run.
//   - If the device is lost, the run ends in this process with a
//     *[DeviceGoneError]. A new process may continue from the newest checkpoint,
//     with the same results.
//   - metrics.jsonl accounts for every step once. A checkpoint gets its final name
//     only after the lines up to its step are on disk. The exception is a checkpoint
//     without which work would be lost: it is written even if the lines cannot be. A
//     run that continues from a checkpoint removes the lines beyond it, since it
//     runs those steps again. journal.jsonl is only ever appended to, so it also
//     keeps the entries about steps that were lost.
//   - A full disk does not end training. The run ends with a *[CheckpointError] only
//     if work would be lost without the checkpoint: at the end, on an interrupt, or
//     before a relaunch.
package harness
