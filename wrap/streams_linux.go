package wrap

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// streams are the child's descriptors, and the copying of what it writes to where it
// would have gone, to the log and to the tail.
type streams struct {
	child    [3]*os.File
	own      []*os.File // those of child that were made here
	copies   []*stream
	record   *recorder
	draining [2]*os.File // closing the second one ends copies that have nothing to read
	copied   chan struct{}
}

// stream is an output stream that is copied. Only its own goroutine uses it, except for
// resize.
type stream struct {
	number  int      // 0 stdout, or both; 1 stderr
	from    *os.File // the near end of a pipe or pseudo-terminal
	to      *os.File
	near    int // descriptor of from, which does not block
	burst   burst
	midLine atomic.Bool // what was passed on last did not end a line
	twin    *twin       // nil if it is a pipe
	trouble func(error)
}

// openStreams opens what the options ask for; if that fails, nothing stays open.
func openStreams(o ChildOptions) (_ *streams, err error) {
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

// pipe makes a blocking pipe, closed on exec. The end that the child is given must block, as the
// file that it stands in for does.
func pipe() (read, write *os.File, err error) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, os.NewSyscallError("pipe", err)
	}
	return os.NewFile(uintptr(ends[0]), "pipe"), os.NewFile(uintptr(ends[1]), "pipe"), nil
}

// add makes the stand-in for a file and returns the end that the child gets.
func (s *streams) add(number int, to *os.File, trouble func(error)) (far *os.File, err error) {
	one := &stream{number: number, to: to, trouble: trouble}
	if isTerminal(to) {
		if one.twin, far, err = openTwin(to); err != nil {
			return nil, fmt.Errorf("a terminal for the command: %w", err)
		}
		one.from = one.twin.master
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

// started closes the child's ends, since the child has its own by now: the copies end with
// the last process that holds one.
func (s *streams) started() {
	for _, f := range s.own {
		_ = f.Close()
	}
	s.own = nil
}

// close closes the near ends. No copy may be running.
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

// resize passes on the sizes of terminals to the twins, and reports whether there are any.
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
		all.Go(func() { one.copy(s.record, s.draining[0]) })
	}
	all.Wait()
}

// untilLeft is how long drain waits for a reader that does not read, once the child was killed.
const untilLeft = 2 * time.Second

// drain waits until all that was written has been copied, and returns the tail. It
// expects that nobody writes any more. After a kill it does not wait forever.
func (s *streams) drain(killed <-chan struct{}) []byte {
	if s.draining[1] != nil {
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
			return s.record.bytes() // what is stuck stays so until the process ends
		}
	}
	s.close()
	return s.record.bytes()
}

// chunk is the most that is copied at once: what a pipe holds.
const chunk = 64 << 10

// copy passes on what is read until the last writer is gone, or until draining is
// closed and there is nothing to read. When the reader at the other end goes away, it
// closes its own end, so that the child finds out as it would have.
func (s *stream) copy(record *recorder, draining *os.File) {
	buffer := make([]byte, chunk)
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
	}
}

// read waits for output of the child, unless there is some already. more is false at the
// end of the output, and when nobody is left to pass it on to.
func (s *stream) read(buffer []byte, draining *os.File) (p []byte, more bool) {
	p, more, wait := s.take(buffer)
	if !wait {
		return p, more
	}
	fds := []unix.PollFd{{Fd: int32(s.near), Events: unix.POLLIN}, {Fd: int32(s.to.Fd())}, {Fd: int32(draining.Fd())}}
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
		case fds[0].Revents == 0:
			return nil, false // draining
		}
		p, more, _ = s.take(buffer)
		return p, more
	}
}

// take reads what there is. wait means that there is nothing yet.
func (s *stream) take(buffer []byte) (p []byte, more, wait bool) {
	n, err := unix.Read(s.near, buffer)
	s.burst.add(n)
	switch {
	case errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN):
		return nil, true, true
	case err != nil || n == 0: // a pseudo-terminal ends with EIO
		return nil, false, false
	case s.twin == nil:
		return buffer[:n], true, false
	}
	// The kernel reports a change of modes before the output that follows it, unless the change
	// comes between its check for one and its check for output: so the modes are followed after
	// every read.
	s.twin.follow()
	return buffer[1:n], true, false
}

// write writes all of p. The descriptor may be non-blocking: others share it, and may have
// set that.
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

// endsLine reports whether what is written after p begins a line: nothing but colour
// codes follows the last line break.
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

// breakLine reports whether a line of our own on stderr needs a line break before it. It
// is asked once per line: the second time, the break has been written.
func (s *streams) breakLine() bool {
	return len(s.copies) > 0 && s.copies[len(s.copies)-1].midLine.CompareAndSwap(true, false)
}

// lost closes the near end: the child's next write fails, and sends it SIGPIPE if the
// stream is a pipe. A missing reader is not worth reporting; a full disk is.
func (s *stream) lost(err error) {
	_ = s.from.Close()
	if !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.EIO) {
		s.trouble(fmt.Errorf("the output of the command cannot be passed on: %w", err))
	}
}
