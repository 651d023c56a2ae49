//go:build !linux

package wrap

// writers is empty on systems other than Linux.
type writers struct{}

func watchWriters(string, string) *writers { return nil }

func (*writers) follow(func(int) bool) {}

func (*writers) of(fileKey) (own bool, other int) { return false, 0 }

func (*writers) close() {}

// opened is a file that a process has open for writing.
type opened struct {
	pid int
	key fileKey
}

func openFor(string) []opened { return nil }
