package wrap

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
)

// KeptElsewhereError says that another headroom process runs a command that keeps its
// checkpoints in the same place. The checkpoints cannot be told apart, so either command
// might resume from a checkpoint of the other.
type KeptElsewhereError struct{ Place string }

func (e *KeptElsewhereError) Error() string {
	return fmt.Sprintf("another headroom run keeps its checkpoints in %s, too; give each command an output folder of its own", e.Place)
}

// Claim reserves the place of m's checkpoints for this process, until the claim is closed
// or the process ends. The claim is nil if m has no checkpoints, or if their place cannot
// be determined or reserved. If another process on this machine has reserved the place,
// the error is a *[KeptElsewhereError]. No file is written: the claim is a Unix socket
// with an abstract name.
func (m *Match) Claim() (io.Closer, error) {
	if m.Profile.Checkpoints.Glob == "" {
		return nil, nil
	}
	root, err := m.root()
	if err != nil {
		return nil, nil // if the place is not known, no checkpoints are looked for either
	}
	place := "/" + m.Command.abs(root) + "/" + m.Profile.Checkpoints.Glob
	claim, err := net.Listen("unix", fmt.Sprintf("@headroom-%x", sha256.Sum256([]byte(place))))
	switch {
	case err == nil:
		return claim, nil
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, &KeptElsewhereError{root}
	}
	return nil, nil // this system has no such sockets: continue without a claim
}
