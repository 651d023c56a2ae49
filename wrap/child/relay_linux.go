package child

import (
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// relayName is the name under which this program, started again, is a relay: it passes on the
// output of processes that a command has left running, from the pipe or pseudo-terminal that
// headroom gave the command to where the output would have gone without headroom. It ends with
// the last of these processes. Without it they would die of SIGPIPE at their next line, or
// headroom would have to wait for them.
const relayName = "headroom-relay"

func init() {
	if len(os.Args) == 2 && os.Args[0] == relayName {
		relay(os.Args[1])
		os.Exit(0)
	}
}

// handOver starts a relay for the given streams, if there are any. If that fails, it passes their
// output on itself, until it ends.
func handOver(held []*stream, trouble func(error)) {
	if len(held) == 0 {
		return
	}
	if err := startRelay(held); err != nil {
		trouble(fmt.Errorf("headroom waits for what the command left running, to pass on its output: no other process can: %w", err))
		relayed(held, func(*stream) {})
	}
}

// startRelay starts a relay, which gets each stream's two ends as its descriptors 3 and 4, 5 and 6
// and so on. It has a session of its own: what ends the terminal's job must not end it, since it
// need not end what it passes on the output of.
func startRelay(held []*stream) error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close() //nolint:errcheck // nothing was written
	kinds, files := "", []*os.File{null, null, null}
	for _, one := range held {
		files = append(files, one.from, one.to)
		if one.packets {
			kinds += "t"
		} else {
			kinds += "p"
		}
	}
	started, err := os.StartProcess("/proc/self/exe", []string{relayName, kinds},
		&os.ProcAttr{Dir: "/", Env: []string{}, Files: files, Sys: &syscall.SysProcAttr{Setsid: true}})
	if err == nil {
		go func() { _, _ = started.Wait() }() // it may end before this process does
	}
	return err
}

// relay is the relay itself. kinds has a letter for each stream: t for a pseudo-terminal, p for a
// pipe.
func relay(kinds string) {
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT) // it ends with the last writer
	var held []*stream
	for i, kind := range strings.Split(kinds, "") {
		from, to := os.NewFile(uintptr(3+2*i), "from"), os.NewFile(uintptr(4+2*i), "to")
		unix.CloseOnExec(3 + 2*i)
		unix.CloseOnExec(4 + 2*i)
		held = append(held, &stream{from: from, to: to, near: 3 + 2*i, packets: kind == "t", trouble: func(error) {}})
	}
	relayed(held, func(one *stream) { _, _ = one.from.Close(), one.to.Close() })
}

// relayed passes on the output of streams until all of them have ended, and calls over with each
// that has.
func relayed(held []*stream, over func(*stream)) {
	var all sync.WaitGroup
	for _, one := range held {
		all.Go(func() {
			one.twin = nil // by now somebody else may be using the terminal
			one.copy(nil, nil, new(atomic.Bool))
			over(one)
		})
	}
	all.Wait()
}
