package notify

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"headroom/runs"
)

// never is a clock on which no time passes.
func never(time.Duration) <-chan time.Time { return nil }

// at returns the entry that a word stands for, some minutes after the beginning.
func at(minutes int, word string) runs.Entry {
	e := happened[word]
	e.Time = began.Add(time.Duration(minutes) * time.Minute)
	return e
}

func TestNotifier(t *testing.T) {
	var mu sync.Mutex
	var got []string
	r := served(t, asSlack, "/KEY", func(_ http.ResponseWriter, q *http.Request) {
		text := make([]byte, 4096)
		n, _ := q.Body.Read(text)
		mu.Lock()
		defer mu.Unlock()
		got = append(got, string(text[:n]))
	})
	n := Start(Options{Run: "night", To: []Receiver{r}, Summary: func() []string { return []string{"so far so good"} }, Failed: func(to Receiver, err error) { t.Error(to, err) }, after: never})
	for minute, word := range []string{"step", "in-place", "in-place", "leaks", "leaks", "done"} {
		n.Entry(at(minute, word))
	}
	n.Close()
	n.Entry(at(60, "crashed")) // too late
	n.Close()
	if len(got) != 3 || !strings.Contains(got[0], "in pieces\\nso far so good") || !strings.Contains(got[1], "runs out in an hour") || !strings.Contains(got[2], "night has finished") {
		t.Errorf("%q", got)
	}
}

func TestNobodyToTell(t *testing.T) {
	n := Start(Options{})
	n.Entry(at(0, "done"))
	n.Close()
	if n != nil {
		t.Error("a notifier for nobody")
	}
}

// TestHangingReceiver has one receiver that never answers, beside one that does: the other gets everything, the end waits for
// as long as is promised, and the user is told once.
func TestHangingReceiver(t *testing.T) {
	asked := make(chan struct{}, 10)
	hangs := served(t, asSlack, "/KEY", func(_ http.ResponseWriter, q *http.Request) {
		asked <- struct{}{}
		hang(q)
	})
	well := make(chan struct{}, 10)
	answers := served(t, asSlack, "/KEY", func(http.ResponseWriter, *http.Request) { well <- struct{}{} })
	passes := make(chan time.Time)
	var waited []time.Duration
	failed := make(chan string, 10)
	n := Start(Options{To: []Receiver{hangs, answers}, Failed: func(to Receiver, err error) {
		if to == hangs { // the other one may be about to get the end of an answer
			failed <- err.Error()
		}
	},
		after: func(d time.Duration) <-chan time.Time {
			if waited = append(waited, d); d == LastWait {
				return passes
			}
			return nil
		}})
	for minute, word := range []string{"leaks", "spills", "crashed"} {
		n.Entry(at(minute, word))
	}
	<-asked
	for range 3 {
		<-well
	}
	go func() { passes <- began }()
	n.Close()
	if len(failed) != 1 || <-failed != "it did not answer in time" || len(waited) != 2 || waited[0] != LastWait {
		t.Errorf("%d failures, waited %v", len(failed), waited)
	}
}

// TestStuckSummary has a report that cannot be drawn: neither the run nor its end waits for it.
func TestStuckSummary(t *testing.T) {
	r := served(t, asSlack, "/KEY", func(http.ResponseWriter, *http.Request) { t.Error("a message without a summary") })
	stuck := make(chan struct{})
	n := Start(Options{To: []Receiver{r}, Failed: func(to Receiver, err error) { t.Error(to, err) },
		Summary: func() []string { <-stuck; return nil },
		after:   func(time.Duration) <-chan time.Time { passed := make(chan time.Time); close(passed); return passed }})
	for i := range 3 * queued { // more than any queue holds
		n.Entry(at(20*i, "leaks"))
	}
	n.Close()
	close(stuck)
	n.all.Wait()
}
