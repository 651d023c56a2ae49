// Package child runs one attempt of a command as a child of this process, in such a way that the
// command cannot tell that it is wrapped: its process tree, its streams, the signals that are
// passed on to it, and what it leaves running when it has ended. Start with [Start].
package child
