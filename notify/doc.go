// Package notify tells people who are asleep what becomes of a run. [Watch] decides, from the entries
// of the run's journal, which of them is worth a message; a [Receiver] is who gets it, a command or
// a URL; and a [Notifier] sends messages beside the run, which never waits for them.
//
// Nothing that a receiver does reaches the run. A message that cannot be sent is not sent again; the user is told
// once for each receiver. When the run ends, it waits at most [LastWait] for messages that are under way.
//
// The address of a webhook is a secret: whoever knows it can write there. No text and no error of this
// package has it; [Receiver.String] is how a receiver is named.
package notify
