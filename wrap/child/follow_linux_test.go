package child

import (
	"os"
	"testing"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

// TestFollowsAtEveryRead checks that output is shown in the terminal modes that the child
// set before it wrote the output, even if the kernel has not reported those modes.
func TestFollowsAtEveryRead(t *testing.T) {
	shown, realOne, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	twin, child, err := openTwin(realOne)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, f := range []*os.File{child, twin.master, realOne, shown} {
			_ = f.Close()
		}
	})
	s := &stream{near: int(twin.master.Fd()), to: realOne, twin: twin, packets: true}
	twin.last.Oflag &^= unix.OPOST // as if the child had set OPOST and no report of that had arrived
	setModes(t, realOne, func(modes *unix.Termios) { modes.Oflag &^= unix.OPOST })
	if _, err := child.WriteString("after"); err != nil {
		t.Fatal(err)
	}
	p, _, _ := s.take(make([]byte, 64))
	modes, err := unix.IoctlGetTermios(int(realOne.Fd()), unix.TCGETS)
	if err != nil || string(p) != "after" || modes.Oflag&unix.OPOST == 0 {
		t.Errorf("%q, %v, output modes %#x: want OPOST to be set again", p, err, modes.Oflag)
	}
}
