// Package worker looks after a training run from inside its processes: it makes the
// Python package in python/headroom available to a command, and answers its messages.
//
//	Begin     starts one life of a command: unpacks the package, opens the socket
//	Life.Env  adds the variables through which Python finds both
//	Pieces    decides how many rows of a step run at once, by recovery.Decide
//	Life.End  reports what was seen, once every process of the life is gone
//
// # The wire
//
// JSON, one message per line, over a Unix socket named by HEADROOM_SOCKET. Both ends
// ignore fields and messages that they do not know.
//
//	to headroom    hello step oom note refused check bye
//	from headroom  plan decision heard look
//
// A process says hello at its first guarded step and gets the plan. Nothing waits
// while all is well. After oom a process waits for the decision. After refused it waits for heard,
// so that headroom's message about it appears before the traceback. headroom's history never
// crosses the wire, and a process whose headroom is gone carries on by itself.
package worker
