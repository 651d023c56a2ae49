// Package worker looks after a training run from inside its processes. It makes the Python
// package in python/headroom_train available to a command, and answers the messages that the
// package sends. An attempt of a command lasts from a start of the command until all of its
// processes have ended.
//
//	Begin        begins an attempt: unpacks the package, opens the socket
//	Attempt.Env  adds the variables by which Python finds the package and the socket
//	Attempt.End  reports what was seen, once every process of the attempt is gone
//	Read         reads a script, of which nothing is executed
//
// # The wire
//
// The two ends exchange JSON, one message per line, over the Unix socket at the path
// in HEADROOM_SOCKET. Both ends ignore fields and messages that they do not know.
//
//	to headroom    hello step oom survived refused holds memory note check tracks ready tried cannot bye
//	from headroom  plan heard look account try
//
// A process says hello at its first guarded step and receives the plan. It decides by itself how
// many rows run at once, and says so with each step; headroom keeps that number for the next
// attempt, and for a process that the command's own launcher starts in place of this one, judges
// what has failed, and writes everything down. No process waits for headroom, with
// two exceptions: after refused it waits for heard, so that headroom's message about the refusal
// appears before the traceback, and after memory, so that the driver is asked about the same moment.
// A process continues on its own if its headroom is gone.
// For headroom find a process says ready after its first step, makes the trials that it is told to try, and never goes on.
//
// Another program of the same user may send ask in place of hello: [Ask].
package worker
