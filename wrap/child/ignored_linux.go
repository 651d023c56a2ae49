//go:build cgo

package child

/*
#include <signal.h>

static unsigned long long ignored;

// look records which signals are ignored, before Go's runtime installs its handlers.
__attribute__((constructor)) static void look(void)
{
	struct sigaction now;
	for (int s = 1; s <= 64; s++)
		if (sigaction(s, 0, &now) == 0 && now.sa_handler == SIG_IGN)
			ignored |= 1ULL << (s - 1);
}

static unsigned long long ignoredAtStart(void) { return ignored; }
*/
import "C"

import (
	"os/signal"
	"syscall"
)

// keepIgnored ignores the signals that were ignored when this process was started, as
// under nohup, in a shell's background job or in a systemd unit (SIGPIPE). A child then
// ignores them too. By itself Go's runtime leaves only SIGHUP and SIGINT ignored.
// SIGCHLD and SIGURG are never ignored: without SIGCHLD no child's status would be
// reported, and without SIGURG no goroutine could be interrupted.
func keepIgnored() {
	for s, set := syscall.Signal(1), uint64(C.ignoredAtStart()); set != 0; s, set = s+1, set>>1 {
		if set&1 != 0 && s != syscall.SIGCHLD && s != syscall.SIGURG {
			signal.Ignore(s)
		}
	}
}
