package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"headroom/cmd/headroom/ui"
	"headroom/device/devicetest"
)

// blow holds the signals that are sent to headroom and to its child in the middle of a round.
type blow struct {
	name     string
	headroom syscall.Signal // 0 for none
	child    syscall.Signal
}

var blows = []blow{
	{name: "none"},
	{name: "headroom is killed", headroom: syscall.SIGKILL},
	{name: "the child is killed", child: syscall.SIGKILL},
	{name: "both are killed", headroom: syscall.SIGKILL, child: syscall.SIGKILL},
	{name: "asked to end", headroom: syscall.SIGTERM},
	{name: "hung up", headroom: syscall.SIGHUP},
	{name: "interrupted", headroom: syscall.SIGINT},
}

// round is one run of the [toy] under headroom, with everything that goes wrong in it.
type round struct {
	blow
	after int // lines of output before the blow
	toy   toyScript
	runs  bool // the toy runs out of memory, once
	small bool // no file may be longer than 512 bytes, as if the disk were full
	twin  bool // a second headroom does the same in the same folder
	told  badReceiver

	dir, mark, receivers string
}

func (r round) String() string {
	return fmt.Sprintf("%s after %d lines, runs out: %v, files bounded: %v, two of them: %v, told: %q, %+v", r.name, r.after, r.runs, r.small, r.twin, r.told, r.toy)
}

// draw returns a random round.
func draw(random *rand.Rand) round {
	odds := func(n int) bool { return random.IntN(n) == 0 }
	var left []string
	for _, kind := range []string{"child", "session", "daemon"} {
		if odds(4) {
			left = append(left, kind)
		}
	}
	if odds(80) { // rarely: such a round takes the whole 10 s that headroom waits
		left = append(left, "deaf")
	}
	r := round{blow: blows[0], runs: odds(8), small: odds(5), toy: toyScript{micro: 32, accumulation: 1, steps: 6, fits: 1 << 20,
		says: odds(4), half: odds(4), deaf: odds(4), leaves: strings.Join(left, ",")}}
	if odds(4) {
		r.told = badReceivers[random.IntN(len(badReceivers))]
	}
	if odds(2) {
		r.blow = blows[1+random.IntN(len(blows)-1)]
	}
	first := 1
	if r.runs {
		r.toy.leaves = strings.TrimSuffix(strings.TrimSuffix(r.toy.leaves, "deaf"), ",")
		r.toy.fits, r.toy.breaks = 16, []string{"", "logs", "journal.jsonl", "metrics.jsonl", "lock"}[random.IntN(5)]
		if r.child != 0 { // in the second attempt: the first one ends by itself
			first = len(r.lines(1)) + 1
		}
	}
	r.toy.says = r.toy.says && r.child == 0
	if r.toy.waits = r.name != "none"; r.toy.waits {
		r.after = first + random.IntN(len(r.lines(2))-first+1)
		return r
	}
	r.toy.code = []int{0, 0, 1, 3, 77, 255}[random.IntN(6)]
	r.toy.says = r.toy.says && r.toy.code == 0 // otherwise another test checks how it ended
	r.twin = !r.runs && !r.toy.half && odds(4)
	return r
}

// lines returns the lines that the toy prints in the given number of attempts, without the run's name
// and process IDs.
func (r round) lines(attempts int) []string {
	var all []string
	from := 1
	for attempt := 1; attempt <= attempts; attempt++ {
		last := attempt == 2 || !r.runs
		all = append(all, "run")
		for _, kind := range strings.FieldsFunc(r.toy.leaves, func(c rune) bool { return c == ',' }) {
			all = append(all, "left "+kind)
		}
		for step := from; step <= r.toy.steps && (last || step < 3); step++ {
			all = append(all, toyStep(step))
			if step%2 == 0 {
				all = append(all, fmt.Sprint("saved ", step))
			}
		}
		if last {
			return append(all, "end")
		}
		from = 3
	}
	return all
}

// command returns the round's command, as a user would write it.
func (r round) command() *exec.Cmd {
	words := []string{"headroom", "run", "--notify", r.notified(), "--trust", "--knob", "micro=--bs", "--knob", "accumulation=--acc", "--knob", "resume=--resume",
		"--knob", "checkpoints=out/step-*.json", "--", "headroom-toy", "--bs", "32", "--acc", "1",
		fmt.Sprintf("-steps=%d", r.toy.steps), fmt.Sprintf("-fits=%d", r.toy.fits), fmt.Sprintf("-says=%v", r.toy.says),
		fmt.Sprintf("-half=%v", r.toy.half), fmt.Sprintf("-deaf=%v", r.toy.deaf), "-leaves=" + r.toy.leaves, "-breaks=" + r.toy.breaks,
		fmt.Sprintf("-waits=%v", r.toy.waits), fmt.Sprintf("-code=%d", r.toy.code)}
	if r.small {
		words = append([]string{"sh", "-c", `ulimit -f 1; exec "$@"`, "sh"}, words...)
	}
	c := exec.Command(words[0], words[1:]...)
	c.Dir, c.Env = r.dir, append(os.Environ(), r.mark, "GORACE=atexit_sleep_ms=0")
	return c
}

// played is how the round ended, as seen from outside.
type played struct {
	run    string // name of the run
	status int    // -1 if headroom was killed
	lines  []string
	errs   string
	child  int // pidfd of the newest child
}

// play runs the round to its end.
func (r round) play() (end played, err error) {
	c := r.command()
	out, write, err := os.Pipe()
	if err != nil {
		return end, err
	}
	defer func() { _ = out.Close() }()
	errs, writeErrs, err := os.Pipe()
	if err != nil {
		return end, errors.Join(err, write.Close())
	}
	defer func() { _ = errs.Close() }()
	c.Stdout, c.Stderr = write, writeErrs // what the toy leaves behind holds them for longer than headroom lives
	err = c.Start()
	_, _ = write.Close(), writeErrs.Close()
	if err != nil {
		return end, err
	}
	said := make(chan string)
	go func() {
		text, _ := io.ReadAll(errs)
		said <- string(text)
	}()
	late := time.AfterFunc(patience, func() { _ = c.Process.Kill() })
	defer late.Stop()
	ended := make(chan error)
	go func() {
		err := c.Wait()
		for _, fd := range r.marked() { // what the toy has left behind holds the pipe
			_ = unix.Close(fd)
		}
		ended <- err
	}()
	end.child = -1
	for lines := bufio.NewScanner(out); lines.Scan(); {
		line := lines.Text()
		var pid int
		if n, _ := fmt.Sscanf(line, "run %s pid %d", &end.run, &pid); n == 2 {
			line = "run"
			if end.child >= 0 {
				_ = unix.Close(end.child)
			}
			if end.child, err = unix.PidfdOpen(pid, 0); err != nil {
				end.child = -1 // the child has already ended
			}
		}
		if end.lines = append(end.lines, line); len(end.lines) == r.after {
			r.strike(c.Process, end.child)
		}
	}
	err = <-ended
	if failed := (*exec.ExitError)(nil); errors.As(err, &failed) {
		err = nil
	}
	end.status, end.errs = c.ProcessState.ExitCode(), <-said
	if ended, ok := c.ProcessState.Sys().(syscall.WaitStatus); ok && ended.Signal() == syscall.SIGINT {
		end.status = ui.Signalled + int(syscall.SIGINT) // as a shell reports it: headroom dies of it if the command has
	}
	return end, err
}

// strike sends the signals of the blow. If headroom gets SIGTERM and the child ignores it,
// strike also kills the child.
func (r round) strike(headroom *os.Process, child int) {
	if r.headroom != 0 {
		_ = headroom.Signal(r.headroom)
	}
	s := r.child
	if r.toy.deaf && r.headroom == syscall.SIGTERM {
		s = syscall.SIGKILL
	}
	if s != 0 && child >= 0 {
		_ = unix.PidfdSendSignal(child, s, nil, 0)
	}
}

// TestChaos plays random rounds, in which several things may go wrong at once, and checks after
// each that headroom has kept its promises.
func TestChaos(t *testing.T) {
	rounds := 200
	if testing.Short() {
		rounds = 40
	}
	random := rand.New(rand.NewPCG(devicetest.Seed(t), 1))
	receivers := serveBadly(t)
	var all sync.WaitGroup
	places := make(chan struct{}, 8) // more than there are processors: some wait for a clock
	for n := range rounds {
		r := draw(random)
		r.receivers = receivers
		r.dir, r.mark = t.TempDir(), fmt.Sprintf("HEADROOM_CHAOS=%d-%d", os.Getpid(), n)
		if err := os.Mkdir(filepath.Join(r.dir, "out"), 0o755); err != nil {
			t.Fatal(err)
		}
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			if err := r.held(); err != nil {
				t.Errorf("round %d: %v\n%v", n, r, err)
			}
		})
	}
	all.Wait()
}
