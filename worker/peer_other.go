//go:build !linux

package worker

import (
	"errors"
	"net"
)

// peer is not known here, so nobody is let in.
func peer(*net.UnixConn) (pid, uid int, err error) {
	return 0, 0, errors.New("who is there: not known on this system")
}
