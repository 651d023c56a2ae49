// Package worker looks after a training from inside its processes: it brings the Python
// package in python/headroom along with a command, and answers what it says.
//
//	Begin     for one life of a command: the package unpacked, the socket open
//	Life.Env  the variables by which Python finds both
//	Pieces    decides how many rows of a step run at once, by recovery.Decide
//	Life.End  what was seen, when nothing of the life is left
//
// # The wire
//
// JSON, one message a line, over a Unix socket that HEADROOM_SOCKET names. Both ends
// ignore fields and messages that they do not know.
//
//	to headroom    hello step oom note refused check bye
//	from headroom  plan decision heard look
//
// A process says hello at its first guarded step and gets the plan. Nothing waits
// while all is well; oom waits for its decision, and refused until it has been heard, so
// that what headroom says of it stands before the traceback. headroom's history never
// crosses the wire, and a process whose headroom is gone goes on by itself.
package worker
