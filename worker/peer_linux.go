package worker

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// peer returns the process at the other end of a connection, and that process's
// user.
func peer(c *net.UnixConn) (pid, uid int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, 0, err
	}
	var found *unix.Ucred
	asked := raw.Control(func(fd uintptr) { found, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if asked != nil {
		err = asked
	}
	if err != nil {
		return 0, 0, fmt.Errorf("identify the process: %w", err)
	}
	return int(found.Pid), int(found.Uid), nil
}
