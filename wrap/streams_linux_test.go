package wrap

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestReaderGoesAway closes the other end of stdout: the child gets SIGPIPE at its
// first write after that, as without headroom, and its stderr keeps working.
func TestReaderGoesAway(t *testing.T) {
	for name, script := range map[string]string{
		"a chatty child": `echo first; while :; do echo more; done`,
		"a quiet child":  `trap 'echo more; echo still here >"$0"' USR1; echo first; while :; do sleep 0.01; done`,
	} {
		t.Run(name, func(t *testing.T) {
			read, write, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			after := filepath.Join(t.TempDir(), "after")
			errs, err := os.Create(filepath.Join(t.TempDir(), "err"))
			if err != nil {
				t.Fatal(err)
			}
			c, _ := begun(t, ChildOptions{Stdout: write, Stderr: errs, Trouble: func(err error) { t.Errorf("trouble: %v", err) }}, "sh", "-c", script, after)
			if line, err := bufio.NewReaderSize(read, 16).ReadString('\n'); line != "first\n" {
				t.Fatalf("%q, %v", line, err)
			}
			_ = read.Close()
			eventually(t, "the child's pipe is closed too", func() bool {
				_, err := c.streams.copies[0].from.Stat()
				return errors.Is(err, os.ErrClosed)
			})
			_ = c.Signal(syscall.SIGUSR1)
			exit := waited(t, c)
			if name == "a quiet child" && exit.Signal != syscall.SIGPIPE {
				t.Errorf("%+v", exit)
			}
			if exit.Signal != syscall.SIGPIPE && exit.Signal != syscall.SIGUSR1 {
				t.Errorf("%+v", exit)
			}
			if _, err := os.Stat(after); err == nil {
				t.Error("it went on after a write that nobody could read")
			}
		})
	}
}

// full is a log on a full disk.
type full struct{ n int }

func (f *full) Write(p []byte) (int, error) {
	if f.n++; f.n > 2 {
		return 0, syscall.ENOSPC
	}
	return len(p), nil
}

// TestFullDiskUnderTheLog checks that the child is not disturbed, and that the full disk is
// reported once.
func TestFullDiskUnderTheLog(t *testing.T) {
	var told []error
	var mu sync.Mutex
	var log full
	exit, got := lived(t, ChildOptions{Log: &log, Trouble: func(err error) { mu.Lock(); told = append(told, err); mu.Unlock() }},
		"sh", "-c", `for i in 1 2 3 4 5 6 7 8 9; do echo $i; sleep 0.002; done`)
	mu.Lock()
	defer mu.Unlock()
	if exit.Code != 0 || got != "1\n2\n3\n4\n5\n6\n7\n8\n9\n" || string(exit.Tail) != got {
		t.Errorf("%+v, %q", exit, got)
	}
	if log.n < 3 {
		t.Skip("everything came at once")
	}
	if len(told) != 1 || !errors.Is(told[0], syscall.ENOSPC) || !strings.Contains(told[0].Error(), "log") {
		t.Errorf("told %q", told)
	}
}

// TestFullDiskUnderTheOutput has stdout itself fail: the child cannot keep writing either.
func TestFullDiskUnderTheOutput(t *testing.T) {
	file, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("SKIPPED: there is no /dev/full")
	}
	told := make(chan error, 10)
	exit, _ := lived(t, ChildOptions{Stdout: file, Trouble: func(err error) { told <- err }, Stderr: os.Stderr}, "yes")
	if exit.Signal != syscall.SIGPIPE || len(told) != 1 || !errors.Is(<-told, syscall.ENOSPC) {
		t.Errorf("%+v, told %d times", exit, len(told))
	}
}

// TestAtOnce checks that nothing waits for the end of a line.
func TestAtOnce(t *testing.T) {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	_ = read.SetReadDeadline(time.Now().Add(limit))
	in, feed, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c, _ := begun(t, ChildOptions{Stdin: in, Stdout: write, Stderr: write}, "sh", "-c", `printf a; read l; printf b >&2; read l; printf c`)
	for _, want := range "abc" {
		var one [8]byte
		if n, err := read.Read(one[:]); err != nil || string(one[:n]) != string(want) {
			t.Fatalf("%q, %v, want %q", one[:n], err, want)
		}
		if _, err := feed.WriteString("\n"); err != nil {
			t.Fatal(err)
		}
	}
	if exit := waited(t, c); exit.Code != 0 {
		t.Errorf("%+v", exit)
	}
}

// TestOneGigabyte checks that memory use stays constant.
func TestOneGigabyte(t *testing.T) {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	exit, _ := lived(t, ChildOptions{Stdout: null, Stderr: null, Log: io.Discard}, "sh", "-c", `yes 0123456789abcde | head -c 1073741824; echo end >&2`)
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 4<<20 {
		t.Errorf("1 GiB of output allocated %d bytes", grown)
	}
	if exit.Code != 0 || len(exit.Tail) > 256<<10 || len(exit.Tail) < 256<<10-32 || !strings.HasSuffix(string(exit.Tail), "0123456789abcde\nend\n") {
		t.Errorf("status %d, %d bytes of tail", exit.Code, len(exit.Tail))
	}
}

// TestDescriptorsAreGivenBack starts many children.
func TestDescriptorsAreGivenBack(t *testing.T) {
	open := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	once := func() {
		t.Run("child", func(t *testing.T) {
			lived(t, ChildOptions{}, "true")
			if _, err := Start(Command{Args: []string{"/dev/null"}}, ChildOptions{}); err == nil {
				t.Error("/dev/null was executed")
			}
		})
	}
	once()
	before := open()
	for range 20 {
		once()
	}
	if after := open(); after > before {
		t.Errorf("%d descriptors, %d after 20 more children", before, after)
	}
}

// chatty lists children that do little but write: one that prints line by line, one
// that counts, and one that does nothing else at all.
var chatty = map[string][]string{
	"prints": {"sh", "-c", "i=0; while [ $i -lt 300000 ]; do echo step $i of 300000: loss 2.345, 1234 tokens/s; i=$((i+1)); done"},
	"counts": {"seq", "30000000"},
	"floods": {"dd", "if=/dev/zero", "bs=64k", "count=16384", "status=none"},
}

// BenchmarkThroughput passes output to a reader, with and without headroom's log and
// tail, and reports the ratio of the two in this run. The children that print and
// count keep their speed (1.07 and 1.00 on 22 November 2026, on two busy cores of an
// AMD EPYC, -benchtime 3x); the one that floods, at a gigabyte a second, keeps a
// third of its speed, because every byte is copied once more, to the log. Without a
// log the ratio is 0.7 to 0.9, and pipes of 1 MiB do not raise it.
func BenchmarkThroughput(b *testing.B) {
	for name, args := range chatty {
		b.Run(name, func(b *testing.B) {
			var plain, wrapped time.Duration
			for b.Loop() {
				plain += timed(b, func(to *os.File) { bareCopy(b, to, args) })
				wrapped += timed(b, func(to *os.File) {
					log, err := os.Create(filepath.Join(b.TempDir(), "log"))
					if err != nil {
						b.Fatal(err)
					}
					defer log.Close() //nolint:errcheck // only a benchmark's
					c, err := Start(Command{Args: args, Env: os.Environ()}, ChildOptions{Stdout: to, Log: log})
					if err != nil {
						b.Fatal(err)
					}
					if exit := c.Wait(); exit.Code != 0 {
						b.Fatalf("%+v", exit)
					}
				})
			}
			b.ReportMetric(plain.Seconds()/wrapped.Seconds(), "of-bare-copy")
		})
	}
}

// bareCopy is the least that can be between a child and a reader.
func bareCopy(b *testing.B, to *os.File, args []string) {
	read, write, err := pipe()
	if err != nil {
		b.Fatal(err)
	}
	c := exec.Command(args[0], args[1:]...)
	c.Stdout = write
	if err := c.Start(); err != nil {
		b.Fatal(err)
	}
	_ = write.Close()
	buffer := make([]byte, 64<<10)
	if _, err := io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{read}, buffer); err != nil {
		b.Fatal(err)
	}
	_ = read.Close()
	if err := c.Wait(); err != nil {
		b.Fatal(err)
	}
}

// timed is how long it takes to fill a pipe that somebody reads to its end.
func timed(b *testing.B, fill func(to *os.File)) time.Duration {
	read, write, err := pipe()
	if err != nil {
		b.Fatal(err)
	}
	end := make(chan struct{})
	go func() {
		defer close(end)
		buffer := make([]byte, 64<<10)
		_, _ = io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{read}, buffer)
	}()
	began := time.Now()
	fill(write)
	_ = write.Close()
	<-end
	_ = read.Close()
	return time.Since(began)
}

// BenchmarkStart measures what a life costs beyond the child's own time: the
// same program started by os/exec and by Start, and the difference of the two.
func BenchmarkStart(b *testing.B) {
	var plain, wrapped time.Duration
	for b.Loop() {
		began := time.Now()
		if err := exec.Command("true").Run(); err != nil {
			b.Fatal(err)
		}
		plain += time.Since(began)
		began = time.Now()
		c, err := Start(Command{Args: []string{"true"}, Env: os.Environ()}, ChildOptions{})
		if err != nil {
			b.Fatal(err)
		}
		c.Wait()
		wrapped += time.Since(began)
	}
	b.ReportMetric(float64((wrapped-plain).Microseconds())/float64(b.N)/1000, "ms-beyond-exec")
}

// TestErrorsComeAfterTheStepsBefore checks that, in the tail, stdout's output at the time of
// an error comes before the error and later output after it, whichever pipe is read first.
func TestErrorsComeAfterTheStepsBefore(t *testing.T) {
	began := time.Now()
	r := &recorder{tail: newTail(1 << 20)}
	for _, c := range []struct {
		at     time.Duration
		stream int
		text   string
	}{
		{0, 1, "warning\n"},
		{heldFor / 2, 0, "step 1\n"},
		{2 * heldFor, 0, "step 2\n"},
		{3 * heldFor, 1, "Trace"}, {3 * heldFor, 1, "back\n"},
		{3*heldFor + 1, 0, "step 3\n"},
	} {
		r.remember(c.stream, []byte(c.text), began.Add(c.at))
	}
	if got, want := string(r.bytes()), "step 1\nwarning\nstep 2\nstep 3\nTraceback\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	flood := bytes.Repeat([]byte("x"), chunk)
	for range 10 {
		r.remember(1, flood, began)
	}
	if len(r.held) > 2*chunk {
		t.Errorf("%d bytes are held", len(r.held))
	}
}

// TestBreakLine checks that what headroom prints begins on a new line, once, wherever in a
// line the child's stderr is.
func TestBreakLine(t *testing.T) {
	for script, want := range map[string]bool{
		`printf '10%%' >&2`:                          true,
		`printf '10%%\n' >&2`:                        false,
		`printf 'red\033[31m\n\033[0m\033[1;4m' >&2`: false,
		`printf 'red\n\033[31mmore\033[0m' >&2`:      true,
		`printf 'up\n\033[2A' >&2`:                   true,
		`printf '10%%'`:                              false, // on stdout, which is another stream
		`true`:                                       false,
	} {
		out, err := os.Create(filepath.Join(t.TempDir(), "out"))
		if err != nil {
			t.Fatal(err)
		}
		errs, err := os.Create(filepath.Join(t.TempDir(), "err"))
		if err != nil {
			t.Fatal(err)
		}
		c, _ := begun(t, ChildOptions{Stdout: out, Stderr: errs}, "sh", "-c", script)
		waited(t, c)
		if got := []bool{c.BreakLine(), c.BreakLine()}; got[0] != want || got[1] {
			t.Errorf("%s: %v", script, got)
		}
	}
}
