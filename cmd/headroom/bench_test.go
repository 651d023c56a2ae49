package main

import (
	"os/exec"
	"slices"
	"testing"
	"time"
)

// BenchmarkWrappedStart is what "headroom run --" adds to a command that does
// nothing, from its start to its end: the same command bare and wrapped in turn, and
// the difference of the medians. Beside it stands what a
// process of headroom takes that does nothing at all; the test binary is the headroom
// here.
//
// On 22 November 2026, on two cores of an AMD EPYC that others used too and a virtual
// disk with 0.4 to 4 ms an fsync, the built program took a median of 17 ms where it had
// taken 26, and when the machine was busier 33 where it had taken 65: 5 are the process,
// 2 to 3 the profiles, the rest four fsyncs, the signals and the child. By
//
//	go test -tags cuda ./cmd/headroom -run '^$' -bench WrappedStart -benchtime 100x
func BenchmarkWrappedStart(b *testing.B) {
	b.Chdir(b.TempDir())
	var bare, wrapped, itself []time.Duration
	lasts := func(args ...string) time.Duration {
		began := time.Now()
		if err := exec.Command(args[0], args[1:]...).Run(); err != nil {
			b.Fatal(err)
		}
		return time.Since(began)
	}
	for b.Loop() {
		bare = append(bare, lasts("true"))
		wrapped = append(wrapped, lasts("headroom", "run", "--", "true"))
		itself = append(itself, lasts("headroom", "version"))
	}
	b.ReportMetric(median(wrapped)-median(bare), "ms-beyond-bare")
	b.ReportMetric(median(itself), "ms-of-a-process")
}

// median is in milliseconds.
func median(all []time.Duration) float64 {
	slices.Sort(all)
	return float64(all[len(all)/2].Microseconds()) / 1000
}
