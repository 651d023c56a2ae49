package child

import (
	"errors"
	"os"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// terminal is this process's controlling terminal. A nil *terminal means that there is none.
type terminal struct {
	file  *os.File
	modes *unix.Termios // its modes when it was opened
}

// controlling opens the controlling terminal, which sends signals to this process. It
// returns nil if there is none.
func controlling() *terminal {
	file, err := os.OpenFile("/dev/tty", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil
	}
	modes, _ := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	return &terminal{file: file, modes: modes}
}

// foreground reports whether the terminal sends its signals to this process's group. The
// child is in the same group.
func (t *terminal) foreground() bool {
	if t == nil {
		return false
	}
	group, err := unix.IoctlGetInt(int(t.file.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// restore resets the terminal to the modes that it had when it was opened, as a shell
// does after a signal has ended a job. Otherwise a password prompt that was killed would
// leave the next attempt without echo. In the background restore does nothing, since a
// background process must not change the modes.
func (t *terminal) restore() {
	if t.foreground() && t.modes != nil {
		_ = unix.IoctlSetTermios(int(t.file.Fd()), unix.TCSETSW, t.modes)
	}
}

func (t *terminal) close() {
	if t != nil {
		_ = t.file.Close()
	}
}

// twin is a pseudo-terminal that the child gets in place of the user's real terminal.
type twin struct {
	master *os.File
	real   *os.File
	last   unix.Termios // modes of the twin that the real terminal has already followed
}

// changing is the set of output modes that change bytes. They are off in the twin, since
// otherwise both terminals would apply them.
const changing = unix.OLCUC | unix.ONLCR | unix.OCRNL | unix.ONOCR | unix.ONLRET | unix.TABDLY

// openTwin makes a pseudo-terminal with the size and modes of a real one, and also returns
// the side that the child gets.
func openTwin(realOne *os.File) (*twin, *os.File, error) {
	modes, err := unix.IoctlGetTermios(int(realOne.Fd()), unix.TCGETS)
	if err != nil {
		return nil, nil, err
	}
	master, slave, err := pty.Open()
	if err != nil {
		return nil, nil, err
	}
	if master, err = unpolled(master); err != nil {
		_ = slave.Close()
		return nil, nil, err
	}
	t := &twin{master: master, real: realOne, last: *modes}
	t.resize()
	t.last.Oflag &^= changing
	t.last.Lflag |= unix.EXTPROC // makes the kernel report every change of modes
	err = unix.IoctlSetTermios(int(slave.Fd()), unix.TCSETS, &t.last)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCPKT, 1)
	}
	if err != nil {
		_ = master.Close()
		_ = slave.Close()
		return nil, nil, err
	}
	return t, slave, nil
}

// unpolled returns a file with the same open file as f, which it closes. The file is not one that the
// os package waits for by itself: each call of Fd would make such a file block again.
func unpolled(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0) // Fd makes it block, and NewFile looks at that
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return os.NewFile(uintptr(fd), f.Name()), f.Close()
}

// resize gives the twin the real terminal's size.
func (t *twin) resize() {
	if size, err := pty.GetsizeFull(t.real); err == nil {
		_ = pty.Setsize(t.master, size)
	}
}

// follow applies the child's changes to the twin's modes to the real terminal as well.
// Full-screen programs, for example, change the modes of their output.
func (t *twin) follow() {
	now, err := unix.IoctlGetTermios(int(t.master.Fd()), unix.TCGETS)
	if err != nil || *now == t.last {
		return
	}
	modes, err := unix.IoctlGetTermios(int(t.real.Fd()), unix.TCGETS)
	if err != nil {
		return
	}
	merge := func(to *uint32, was, is, only uint32) {
		changed := (was ^ is) & only
		*to = *to&^changed | is&changed
	}
	before := *modes
	merge(&modes.Iflag, t.last.Iflag, now.Iflag, ^uint32(0))
	merge(&modes.Oflag, t.last.Oflag, now.Oflag, unix.OPOST)
	merge(&modes.Lflag, t.last.Lflag, now.Lflag, ^uint32(unix.EXTPROC))
	for i := range modes.Cc {
		if t.last.Cc[i] != now.Cc[i] {
			modes.Cc[i] = now.Cc[i]
		}
	}
	t.last = *now
	if *modes != before {
		_ = unix.IoctlSetTermios(int(t.real.Fd()), unix.TCSETS, modes)
	}
}

func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// sameStream reports whether two files are the same pipe, file or terminal. The child then
// gets one pipe or twin for both, which keeps the order of the output.
func sameStream(a, b *os.File) bool {
	if isTerminal(a) && isTerminal(b) {
		one, err1 := unix.IoctlGetUint32(int(a.Fd()), unix.TIOCGDEV)
		other, err2 := unix.IoctlGetUint32(int(b.Fd()), unix.TIOCGDEV)
		return err1 == nil && err2 == nil && one == other
	}
	one, err1 := a.Stat()
	other, err2 := b.Stat()
	return err1 == nil && err2 == nil && os.SameFile(one, other)
}
