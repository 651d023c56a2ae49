//go:build !linux

package worker

import (
	"errors"
	"net"
)

// peer returns an error, because the process at the other end of a connection
// cannot be determined on this system. So every connection is refused.
func peer(*net.UnixConn) (pid, uid int, err error) {
	return 0, 0, errors.New("identify the process: not supported on this system")
}
