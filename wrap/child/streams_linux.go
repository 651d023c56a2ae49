package child

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// streams are the child's standard files. They copy the child's output to the log, to the
// tail, and to the files that it would have gone to without headroom.
type streams struct {
	child    [3]*os.File
	own      []*os.File // those in child that were opened here
	copies   []*stream
	record   *recorder
	draining [2]*os.File   // a pipe; closing its second end ends copies that have nothing to read
	dry      atomic.Bool   // draining has been closed: only what is there already is still to be copied
	copied   chan struct{} // closed when all copies have ended
}

// stream is an output stream that is copied. Only the goroutine that copies it uses it,
// except for resize and midLine.
type stream struct {
	number  int      // 0 for stdout, or for both streams in one; 1 for stderr
	from    *os.File // headroom's end of a pipe or pseudo-terminal
	to      *os.File
	near    int // descriptor of from, which does not block
	burst   burst
	midLine atomic.Bool // the last output that was passed on did not end a line
	packets bool        // from is a pseudo-terminal: a byte about its state comes before the output
	twin    *twin       // nil if from is a pipe, or if the terminal's modes are nobody's to change any more
	held    bool        // a process has the child's end open after the child's own output has been copied
	trouble func(error)
}

// openStreams opens the files that the options ask for. If that fails, it closes those that
// it has opened.
func openStreams(o Options) (_ *streams, err error) {
	s := &streams{child: [3]*os.File{o.Stdin, o.Stdout, o.Stderr}, copied: make(chan struct{})}
	s.record = newRecorder(o)
	if o.Bare {
		return s, nil
	}
	defer func() {
		if err != nil {
			s.started()
			s.close()
		}
	}()
	if s.draining[0], s.draining[1], err = pipe(); err != nil {
		return nil, err
	}
	if s.child[1], err = s.add(0, o.Stdout, o.Trouble); err != nil {
		return nil, err
	}
	if s.child[2] = s.child[1]; !sameStream(o.Stdout, o.Stderr) {
		s.child[2], err = s.add(1, o.Stderr, o.Trouble)
	}
	return s, err
}

// pipe makes a pipe whose ends block and are closed on exec. The child's end must block,
// like the file that the child would have had without headroom.
func pipe() (read, write *os.File, err error) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, os.NewSyscallError("pipe", err)
	}
	return os.NewFile(uintptr(ends[0]), "pipe"), os.NewFile(uintptr(ends[1]), "pipe"), nil
}

// add replaces the child's output file, to, with a pipe or pseudo-terminal, which it
// opens. It returns the child's end.
func (s *streams) add(number int, to *os.File, trouble func(error)) (far *os.File, err error) {
	one := &stream{number: number, to: to, trouble: trouble}
	if isTerminal(to) {
		if one.twin, far, err = openTwin(to); err != nil {
			return nil, fmt.Errorf("a terminal for the command: %w", err)
		}
		one.from, one.packets = one.twin.master, true
	} else if one.from, far, err = pipe(); err != nil {
		return nil, err
	}
	one.near = int(one.from.Fd())
	if err := unix.SetNonblock(one.near, true); err != nil { // the child's end stays as it is
		_, _ = one.from.Close(), far.Close()
		return nil, err
	}
	s.copies, s.own = append(s.copies, one), append(s.own, far)
	return far, nil
}

func (s *streams) files() []*os.File { return s.child[:] }

// started closes this process's own descriptors for the child's ends, once the child has
// been started. The copying of a stream then ends when no process has the child's end
// open any more.
func (s *streams) started() {
	for _, f := range s.own {
		_ = f.Close()
	}
	s.own = nil
}

// close closes headroom's ends. It must not be called while a stream is still being
// copied.
func (s *streams) close() {
	for _, one := range s.copies {
		_ = one.from.Close()
	}
	for _, f := range s.draining {
		if f != nil {
			_ = f.Close()
		}
	}
}

// resize gives all twins the sizes of their terminals, and reports whether there are twins.
func (s *streams) resize() bool {
	found := false
	for _, one := range s.copies {
		if one.twin != nil {
			one.twin.resize()
			found = true
		}
	}
	return found
}

// copy copies all streams until they end, and returns when the log has all output.
func (s *streams) copy() {
	defer close(s.copied)
	defer s.record.flush()
	var all sync.WaitGroup
	for _, one := range s.copies {
		all.Go(func() { one.copy(s.record, s.draining[0], &s.dry) })
	}
	all.Wait()
}

// untilLeft is how long drain waits for a slow reader after the child was killed.
const untilLeft = 2 * time.Second

// drain waits until the output that has been written so far has been copied, and returns the
// tail. If leave is true and other processes can still write output, a process of its own passes
// that on (see [relay]). Once killed is closed, drain waits no longer than untilLeft.
func (s *streams) drain(killed <-chan struct{}, leave bool, trouble func(error)) []byte {
	if s.draining[1] != nil {
		s.dry.Store(true)
		_ = s.draining[1].Close()
		s.draining[1] = nil
	}
	select {
	case <-s.copied:
	case <-killed:
		late := time.NewTimer(untilLeft)
		defer late.Stop()
		select {
		case <-s.copied:
		case <-late.C:
			return s.record.bytes() // the copy that is stuck stays so until this process ends
		}
	}
	if leave {
		handOver(slices.DeleteFunc(slices.Clone(s.copies), func(one *stream) bool { return !one.held }), trouble)
	}
	s.close()
	return s.record.bytes()
}

// chunk is the most that is copied at once, in bytes: as much as a pipe holds.
const chunk = 64 << 10

// copy passes on output until the last writer is gone. If the reader of the output goes away, copy
// closes headroom's end, so that the child notices as it would have without headroom. Once dry is
// set and draining is closed, copy also ends, and sets held, when it has passed on what had been
// written by then: other writers could go on for ever.
func (s *stream) copy(record *recorder, draining *os.File, dry *atomic.Bool) {
	buffer := make([]byte, chunk)
	rest, counted := 0, false // bytes that had been written when dry was set
	for {
		p, more := s.read(buffer, draining)
		if len(p) > 0 {
			err := s.write(p)
			record.add(s.number, p)
			if err != nil {
				s.lost(err)
				return
			}
		}
		if !more {
			return
		}
		if !dry.Load() {
			continue
		}
		if counted {
			rest -= len(p)
		} else {
			counted = true
			rest, _ = unix.IoctlGetInt(s.near, unix.TIOCINQ) // 0 if that is not known
		}
		if rest <= 0 && s.open() {
			s.held = true
			return
		}
	}
}

// open reports whether a process has the child's end of the stream open.
func (s *stream) open() bool {
	fds := []unix.PollFd{{Fd: int32(s.near)}}
	_, err := unix.Poll(fds, 0)
	return err == nil && fds[0].Revents&unix.POLLHUP == 0
}

// read returns output of the child, and waits for it if there is none yet. more is false at
// the end of the output, and if the reader of the output is gone.
func (s *stream) read(buffer []byte, draining *os.File) (p []byte, more bool) {
	p, more, wait := s.take(buffer)
	if !wait {
		return p, more
	}
	fds := []unix.PollFd{{Fd: int32(s.near), Events: unix.POLLIN}, {Fd: int32(s.to.Fd())}, {Fd: -1}}
	if draining != nil {
		fds[2].Fd = int32(draining.Fd())
	}
	s.burst.gather()
	for {
		_, err := unix.Poll(fds, -1)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			s.lost(err)
			return nil, false
		case fds[1].Revents != 0:
			s.lost(unix.EPIPE)
			return nil, false
		case fds[0].Revents == 0: // draining was closed
			s.held = true
			return nil, false
		}
		p, more, _ = s.take(buffer)
		return p, more
	}
}

// take reads the output that is there, without waiting. wait means that there is none yet.
func (s *stream) take(buffer []byte) (p []byte, more, wait bool) {
	n, err := unix.Read(s.near, buffer)
	s.burst.add(n)
	switch {
	case errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN):
		return nil, true, true
	case err != nil || n == 0: // a pseudo-terminal ends with EIO
		return nil, false, false
	case !s.packets:
		return buffer[:n], true, false
	}
	// The kernel reports a change of modes before the output that follows it. It misses a change
	// between its check for changes and its check for output. So follow after every read.
	if s.twin != nil {
		s.twin.follow()
	}
	return buffer[1:n], true, false
}

// write writes all of p. The descriptor may be non-blocking, since another process that
// shares it may have made it so.
func (s *stream) write(p []byte) error {
	to := int(s.to.Fd())
	s.midLine.Store(!endsLine(p))
	for len(p) > 0 {
		n, err := unix.Write(to, p)
		switch {
		case errors.Is(err, unix.EAGAIN):
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(to), Events: unix.POLLOUT}}, -1)
		case err != nil && !errors.Is(err, unix.EINTR):
			return err
		}
		p = p[max(0, n):]
	}
	return nil
}

// endsLine reports whether output after p would begin a new line, because nothing but
// colour codes follows the last line break in p.
func endsLine(p []byte) bool {
	p = p[bytes.LastIndexByte(p, '\n')+1:]
	for len(p) > 0 {
		end := bytes.IndexByte(p, 'm')
		if !bytes.HasPrefix(p, []byte("\x1b[")) || end < 0 || len(bytes.Trim(p[2:end], "0123456789;")) > 0 {
			return false
		}
		p = p[end+1:]
	}
	return true
}

// breakLine reports whether headroom must write a line break before it writes a line of its
// own to stderr. The caller then writes the break: a second call returns false.
func (s *streams) breakLine() bool {
	return len(s.copies) > 0 && s.copies[len(s.copies)-1].midLine.CompareAndSwap(true, false)
}

// lost closes headroom's end of the stream after the error err. The child's next write then
// fails, and also raises SIGPIPE if the stream is a pipe. A reader that is gone is not
// reported, but a full disk is.
func (s *stream) lost(err error) {
	_ = s.from.Close()
	if !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.EIO) {
		s.trouble(fmt.Errorf("the output of the command cannot be passed on: %w", err))
	}
}
