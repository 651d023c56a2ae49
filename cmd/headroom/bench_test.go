package main

import (
	"cmp"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// BenchmarkWrappedStart measures the time that "headroom run --" adds to a command that
// does nothing but print the time: before the command runs, and from then to the end. The
// command is run bare and wrapped in turn, and the figures are differences of medians. For
// comparison, the benchmark also measures a headroom process that does nothing at all.
// Figures are in bench/results. On ext4 the later rounds are slower: the file system looks
// through the inodes that were deleted in the last five seconds, and these starts leave
// thousands.
//
// By default, the headroom that is measured is the test binary, which links more code and
// starts more slowly than a released one. HEADROOM_PROGRAM names a released one:
//
//	make build
//	HEADROOM_PROGRAM=$PWD/bin/headroom go test -tags cuda ./cmd/headroom -run '^$' -bench WrappedStart -benchtime 100x
func BenchmarkWrappedStart(b *testing.B) {
	for _, on := range []struct{ name, above string }{{"disk", ""}, {"tmpfs", "/dev/shm"}} {
		b.Run(on.name, func(b *testing.B) {
			folder, err := os.MkdirTemp(on.above, "headroom-bench-")
			if err != nil {
				b.Skip(err)
			}
			b.Cleanup(func() { _ = os.RemoveAll(folder) })
			b.Chdir(folder)
			b.Setenv("TMPDIR", cmp.Or(on.above, os.TempDir())) // the worker's files, too
			var bare, wrapped lasted
			var itself []time.Duration
			for b.Loop() {
				bare.measure(b, "date", "+%s%N")
				wrapped.measure(b, benched(), "run", "--", "date", "+%s%N")
				began := time.Now()
				if err := exec.Command(benched(), "version").Run(); err != nil {
					b.Fatal(err)
				}
				itself = append(itself, time.Since(began))
			}
			b.ReportMetric(median(wrapped.before)-median(bare.before), "ms-to-command")
			b.ReportMetric(median(wrapped.after)-median(bare.after), "ms-to-end")
			b.ReportMetric(median(itself), "ms-of-a-process")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// benched returns the headroom program that is measured.
func benched() string { return cmp.Or(os.Getenv("HEADROOM_PROGRAM"), "headroom") }

// lasted holds, for each start of a command, the time until the command ran, and the time
// from then until its end.
type lasted struct{ before, after []time.Duration }

// measure runs a command that prints the current time in nanoseconds. It appends to s the time
// until the command ran, and the time from then until it ended.
func (s *lasted) measure(b *testing.B, args ...string) {
	b.Helper()
	began := time.Now()
	out, err := exec.Command(args[0], args[1:]...).Output()
	ended := time.Now()
	if err != nil {
		b.Fatal(err)
	}
	ran, err := strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
	if err != nil {
		b.Fatal(err)
	}
	s.before = append(s.before, time.Unix(0, ran).Sub(began))
	s.after = append(s.after, ended.Sub(time.Unix(0, ran)))
}

// BenchmarkWrappedOutput measures the throughput of wrapped commands, as a fraction of
// the throughput of the same commands run bare. In both cases the output goes through a
// pipe. The commands are a script and a Python loop that print line by line as fast as
// they can, a program that does nothing but print lines, and two that write as much as
// they can.
func BenchmarkWrappedOutput(b *testing.B) {
	for _, c := range []struct{ name, command string }{
		{"steps", "i=0; while [ $i -lt 200000 ]; do echo step $i loss 1.2345; i=$((i+1)); done"},
		{"python", `python3 -c "for i in range(1000000): print(f'step {i} loss 2.345678 lr 3.000e-04 grad_norm 0.98 tokens/s 123456 memory 12.3 GiB eta 03:12:45')"`},
		{"lines", "stdbuf -oL seq 1000000 1400000"},
		{"blocks", "head -c 500000000 /dev/zero"},
		{"flood", "yes | head -c 500000000"},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.Chdir(b.TempDir())
			var bare, wrapped []time.Duration
			for b.Loop() {
				bare = append(bare, drained(b, "sh", "-c", c.command))
				wrapped = append(wrapped, drained(b, benched(), "run", "--", "sh", "-c", c.command))
			}
			b.ReportMetric(median(bare)/median(wrapped), "of-bare")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// drained returns how long a command takes while its output is read to the end.
func drained(b *testing.B, args ...string) time.Duration {
	b.Helper()
	c := exec.Command(args[0], args[1:]...)
	began := time.Now()
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err == nil {
		_, err = io.Copy(struct{ io.Writer }{io.Discard}, out)
	}
	if err == nil {
		err = c.Wait()
	}
	if err != nil {
		b.Fatal(err)
	}
	return time.Since(began)
}

// median returns the median of all, in milliseconds.
func median(all []time.Duration) float64 {
	slices.Sort(all)
	return float64(all[len(all)/2].Microseconds()) / 1000
}
