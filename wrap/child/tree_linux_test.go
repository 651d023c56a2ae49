package child

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"headroom/machine"
	"headroom/wrap/command"
	"headroom/wrap/wraptest"
)

// forest is a script that leaves five descendants behind, and each prints its PID. One is a
// daemon, which forks twice into a session of its own. One has a session of its own. One
// ignores SIGTERM, and so does its child. One is stopped.
const forest = `
setsid sh -c 'sh -c "echo pid \$\$; exec sleep 1000" & sleep 0' 
setsid sh -c 'echo pid $$; exec sleep 1000' &
sh -c 'trap "" TERM; echo pid $$; sh -c "trap \"\" TERM; echo pid \$\$; while :; do sleep 1000; done" & while :; do sleep 1000; done' &
sh -c 'echo pid $$; kill -STOP $$; sleep 1000' &
`

// grown waits until all processes of a forest have printed their PIDs to the file out,
// and returns the PIDs.
func grown(t *testing.T, out string) []string {
	t.Helper()
	var numbers []string
	wraptest.Eventually(t, "five processes", func() bool {
		text, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		numbers = nil
		for _, line := range strings.Split(string(text), "\n") {
			if number, ok := strings.CutPrefix(line, "pid "); ok {
				numbers = append(numbers, number)
			}
		}
		return len(numbers) == 5
	})
	return numbers
}

// ownChildren lists the children of this process, dead ones included.
func ownChildren() []machine.Process {
	return slices.DeleteFunc(machine.Processes(), func(p machine.Process) bool { return p.Parent != os.Getpid() })
}

func allGone(t *testing.T, numbers []string) {
	t.Helper()
	for _, number := range numbers {
		if !wraptest.Gone(number) {
			pid, _ := strconv.Atoi(number)
			t.Errorf("process %s is left, in state %s", number, stateOf(pid))
		}
	}
	if !childless() {
		t.Errorf("there are still children: %v", ownChildren())
	}
}

// TestNothingIsLeft checks that no process is left after the child has ended by itself.
func TestNothingIsLeft(t *testing.T) {
	ready := filepath.Join(t.TempDir(), "ready")
	c, out := begun(t, Options{Grace: 50 * time.Millisecond}, "sh", "-c", forest+`while ! [ -e "$0" ]; do sleep 0.01; done; exit 4`, ready)
	numbers := grown(t, out)
	if err := os.WriteFile(ready, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	exit := waited(t, c)
	if exit.Code != 4 || exit.Stopped {
		t.Errorf("%+v", exit)
	}
	allGone(t, numbers)
}

// TestWhatIsLeftIsAsked checks that a process that is left behind gets SIGTERM, and can
// finish its work within the grace period.
func TestWhatIsLeftIsAsked(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	exit, out := lived(t, Options{Grace: wraptest.Limit}, "sh", "-c", `
sh -c 'trap "echo saved; exit" TERM; echo >"$0"; while :; do sleep 0.01; done' "$0" & read line <"$0"; exit 6`, fifo)
	if exit.Code != 6 || !strings.HasSuffix(out, "saved\n") {
		t.Errorf("%+v, %q", exit, out)
	}
}

// TestStopNow checks that a second Stop kills a tree that ignores SIGTERM, and that no
// process is left.
func TestStopNow(t *testing.T) {
	c, out := begun(t, Options{}, "sh", "-c", `trap "" TERM; `+forest+`while :; do sleep 1000; done`)
	numbers := grown(t, out)
	c.Stop()
	select {
	case <-c.Done():
		t.Error("it ended at a signal that it ignores")
	default:
	}
	c.Stop()
	exit := waited(t, c)
	if exit.Code != 137 || exit.Signal != syscall.SIGKILL || !exit.Stopped {
		t.Errorf("%+v", exit)
	}
	allGone(t, numbers)
	c.Stop() // it has no effect after the end
}

// TestStopNowAfterTheChild checks that a second Stop also kills the processes that the
// child left behind when it ended.
func TestStopNowAfterTheChild(t *testing.T) {
	ready := filepath.Join(t.TempDir(), "ready")
	c, out := begun(t, Options{Grace: time.Hour}, "sh", "-c", forest+`while ! [ -e "$0" ]; do sleep 0.01; done; exit 4`, ready)
	numbers := grown(t, out)
	if err := os.WriteFile(ready, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	wraptest.Eventually(t, "the child ends", c.ended.Load)
	c.Stop()
	c.Stop()
	if exit := waited(t, c); exit.Code != 4 || !exit.Stopped {
		t.Errorf("%+v", exit)
	}
	allGone(t, numbers)
}

// TestPatience checks that a child that does not end after a single Stop is killed when
// Patience is over.
func TestPatience(t *testing.T) {
	c, out := begun(t, Options{Patience: 50 * time.Millisecond}, "sh", "-c", `trap "" TERM; `+forest+`while :; do sleep 1000; done`)
	numbers := grown(t, out)
	c.Stop()
	exit := waited(t, c)
	if exit.Signal != syscall.SIGKILL || !exit.Stopped {
		t.Errorf("%+v", exit)
	}
	allGone(t, numbers)
}

// TestStopLetsTheChildSave checks that Stop asks only the child to end. Its worker process
// continues, so that the child can still save with its help.
func TestStopLetsTheChildSave(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	c, out := begun(t, Options{}, "sh", "-c", `
sh -c 'trap "echo worker was asked" TERM; read line <"$0"; echo worker $line' "$0" &
trap 'echo saving; echo saved >"$0"; wait; exit 3' TERM
echo ready; while :; do sleep 0.01; done`, fifo)
	wraptest.Eventually(t, "ready", func() bool { text, _ := os.ReadFile(out); return strings.Contains(string(text), "ready\n") })
	c.Stop()
	exit := waited(t, c)
	if text, _ := os.ReadFile(out); exit.Code != 3 || !exit.Stopped || string(text) != "ready\nsaving\nworker saved\n" {
		t.Errorf("%+v, %q", exit, text)
	}
}

// TestStopWakesWhatIsStopped checks that Stop also ends a child that is stopped by SIGSTOP.
func TestStopWakesWhatIsStopped(t *testing.T) {
	c, _ := begun(t, Options{}, "sh", "-c", `kill -STOP $$; sleep 1000`)
	wraptest.Eventually(t, "it stops", func() bool { return stateOf(c.Pid()) == "T" })
	c.Stop()
	if exit := waited(t, c); exit.Signal != syscall.SIGTERM || exit.Code != 143 {
		t.Errorf("%+v", exit)
	}
}

// TestOrphansAreReaped checks that dead orphans are reaped while the child is still running.
func TestOrphansAreReaped(t *testing.T) {
	c, out := begun(t, Options{}, "sh", "-c", `for i in 1 2 3 4 5 6 7 8 9; do sh -c 'sh -c "echo pid \$\$" &'; done; exec sleep 1000`)
	var numbers []string
	wraptest.Eventually(t, "nine orphans", func() bool {
		text, _ := os.ReadFile(out)
		numbers = strings.Fields(strings.ReplaceAll(string(text), "pid ", ""))
		return len(numbers) == 9
	})
	wraptest.Eventually(t, "they are reaped", func() bool {
		for _, number := range numbers {
			if _, err := os.Stat("/proc/" + number); !errors.Is(err, fs.ErrNotExist) {
				return false
			}
		}
		return true
	})
	if stateOf(c.Pid()) == "" {
		t.Error("the child has ended")
	}
}

// TestForeignChildrenAreLeftAlone checks that a child that this process had before is neither
// ended while it runs nor reaped after its end.
func TestForeignChildrenAreLeftAlone(t *testing.T) {
	other := exec.Command("cat")
	in, err := other.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	c, _ := begun(t, Options{}, "sh", "-c", "sleep 1000")
	c.Stop()
	c.Stop()
	waited(t, c)
	if wraptest.Gone(strconv.Itoa(other.Process.Pid)) {
		t.Error("another child was ended")
	}
	_ = in.Close()
	wraptest.Eventually(t, "it ends", func() bool { return wraptest.Gone(strconv.Itoa(other.Process.Pid)) })
	lived(t, Options{}, "sh", "-c", "true & sleep 0.01")
	if err := other.Wait(); err != nil {
		t.Errorf("somebody else has waited for it: %v", err)
	}
}

// TestAListWithAGap checks that a process is ended even if it is missing from the first
// lists of processes.
func TestAListWithAGap(t *testing.T) {
	tree := newTree(func(err error) { t.Error(err) })
	defer tree.release()
	go tree.reapOrphans()
	c := exec.Command("sleep", "1000")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	lists := 0
	tree.list = func() []machine.Process {
		if lists++; lists < looksForNothing {
			return nil
		}
		return machine.Processes()
	}
	tree.rest()
	tree.end(time.Minute, nil, everyProcess)
	if !wraptest.Gone(strconv.Itoa(c.Process.Pid)) {
		t.Errorf("it is left after %d lists", lists)
		_ = c.Process.Kill()
	}
	_ = c.Wait() // it has been reaped
}

// TestChildDiesWithItsParent checks that the child gets SIGTERM when the wrapper is killed.
func TestChildDiesWithItsParent(t *testing.T) {
	p := onPipes(t, helper("wrap", "sh", "-c", `trap 'echo asked >"$0"; exit' TERM; echo ready $$; while :; do sleep 0.01; done`, filepath.Join(t.TempDir(), "asked")))
	p.out.await(t, "ready ")
	child := pidAfter(t, p.out.String(), "ready ")
	p.signal(syscall.SIGKILL)
	wraptest.Eventually(t, "the child ends too", func() bool { return wraptest.Gone(strconv.Itoa(child)) })
	if text, err := os.ReadFile(p.cmd.Args[len(p.cmd.Args)-1]); err != nil || string(text) != "asked\n" {
		t.Errorf("it was not asked: %q, %v", text, err)
	}
	_ = p.cmd.Wait()
}

func TestOneChildAtATime(t *testing.T) {
	c, _ := begun(t, Options{}, "sleep", "1000")
	if _, err := Start(command.Line{Args: []string{"true"}}, Options{}); !errors.Is(err, ErrBusy) {
		t.Errorf("a second child: %v", err)
	}
	c.Stop()
	waited(t, c)
	if exit, _ := lived(t, Options{}, "true"); exit.Code != 0 {
		t.Errorf("after the end: %+v", exit)
	}
}

// TestKilledWithAReaderThatDoesNotRead checks that Wait returns after a kill even if the
// child's output cannot be passed on, because its reader does not read.
func TestKilledWithAReaderThatDoesNotRead(t *testing.T) {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c, _ := begun(t, Options{Stdout: write, Stderr: write}, "sh", "-c", "yes & yes")
	wraptest.Eventually(t, "the pipe is full", func() bool {
		n, err := unix.IoctlGetInt(int(read.Fd()), unix.TIOCINQ)
		return err == nil && n == 64<<10
	})
	c.Stop()
	c.Stop()
	if exit := waited(t, c); exit.Code != 137 && exit.Code != 143 {
		t.Errorf("%+v", exit)
	}
	_ = read.Close()
	<-c.streams.copied
	_ = write.Close()
}
