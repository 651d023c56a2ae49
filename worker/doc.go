// Package worker looks after a training run from inside its processes. It makes the Python
// package in python/headroom_train available to a command, and answers the messages that the
// package sends. A life of a command lasts from a start of the command until all of its
// processes have ended.
//
//	Begin     starts one life of a command: unpacks the package, opens the socket
//	Life.Env  adds the variables by which Python finds the package and the socket
//	Pieces    decides how many rows of a step run at once, using recovery.Decide
//	Life.End  reports what was seen, once every process of the life is gone
//
// # The wire
//
// The two ends exchange JSON, one message per line, over the Unix socket at the path
// in HEADROOM_SOCKET. Both ends ignore fields and messages that they do not know.
//
//	to headroom    hello step oom note refused check bye
//	from headroom  plan decision heard look
//
// A process says hello at its first guarded step and receives the plan. As long as nothing fails,
// no process waits after that. After oom a process waits for the decision. After refused it waits
// for heard, so that headroom's message about the refusal appears before the traceback. headroom's
// history never crosses the wire, and a process continues on its own if its headroom is gone.
package worker
