package wrap

import (
	"os"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// terminal is this process's controlling terminal, nil if there is none.
type terminal struct {
	file  *os.File
	modes *unix.Termios // at the start
}

// controlling opens the terminal that sends signals to this process, nil if there is none.
func controlling() *terminal {
	file, err := os.OpenFile("/dev/tty", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil
	}
	modes, _ := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	return &terminal{file: file, modes: modes}
}

// foreground reports whether the terminal sends its signals to this process's group,
// which is the child's too.
func (t *terminal) foreground() bool {
	if t == nil {
		return false
	}
	group, err := unix.IoctlGetInt(int(t.file.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// restore puts back the modes that the terminal had at the start, as a shell does after
// a job that a signal ended: a password prompt that is killed would leave the next life
// without echo. In the background they are not ours to change.
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

// twin is a pseudo-terminal that stands in for a real one.
type twin struct {
	master *os.File
	real   *os.File
	last   unix.Termios // modes of the twin that the real one has followed
}

// changing is the set of output modes that change bytes. They are left to the real
// terminal, since they would be applied twice otherwise.
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
	t := &twin{master: master, real: realOne, last: *modes}
	t.resize()
	t.last.Oflag &^= changing
	t.last.Lflag |= unix.EXTPROC // has the kernel report every change
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

// resize gives the twin the real terminal's size.
func (t *twin) resize() {
	if size, err := pty.GetsizeFull(t.real); err == nil {
		_ = pty.Setsize(t.master, size)
	}
}

// follow gives the real terminal the modes that the child has changed on the twin:
// full-screen programs set them on their output.
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

// sameStream reports whether two files are the same pipe, file or terminal. Then they
// share what stands in for them, which keeps the order of what is written.
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
