package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"headroom/cmd/headroom/ui"
	"headroom/configs"
	"headroom/memory"
	"headroom/runs"
	"headroom/worker"
)

// answerMost is how long a run's processes are given to account for their memory. Each does so at the
// end of its current step. answerLook is the time between two looks for the answers.
const (
	answerMost = 30 * time.Second
	answerLook = 50 * time.Millisecond
)

// holding is what a run's memory is held for, as headroom explain RUN shows it.
type holding struct {
	Run      string         `json:"run"`
	State    runs.State     `json:"state"`
	Asked    int            `json:"asked"`            // processes that were asked, if the run is in progress
	Answered int            `json:"answered"`         // and have answered in time
	Memory   []runs.Account `json:"memory"`           // the newest account of each memory
	Holder   *memory.Holder `json:"holder,omitempty"` // what was found to hold memory that grows, newest
}

// explainRun shows what the memory of a run is held for: now, if the run is in progress.
func explainRun(u *ui.UI, c *cli.Context) error {
	dir, err := runFolder(c.Args().First())
	if err != nil {
		return err
	}
	s, err := standingOf(dir)
	if err != nil {
		return err
	}
	h := holding{Run: s.word(), State: s.State}
	since := time.Now()
	if s.State == runs.StateRunning && s.Socket != "" {
		if h.Asked, err = worker.Ask(s.Socket); err != nil {
			u.Warn("%v; this is the newest account in the journal", err)
		}
		h.Answered = answers(c.Context, dir, since, h.Asked)
	}
	entries, err := runs.ReadJournal(dir)
	if err != nil && entries == nil {
		return fmt.Errorf("explain: %w", err)
	}
	if h.Answered == 0 {
		since = time.Time{}
	}
	h.Memory = runs.NewestAccounts(entries, since)
	for _, e := range entries {
		h.Holder = cmp.Or(e.Holder, h.Holder)
	}
	if c.Bool("json") {
		return u.AnswerJSON(h)
	}
	return u.Answer(strings.TrimRight(ui.PrintableLines(h.full()), "\n"))
}

// askedForMemory asks the processes of the run in dir for an account of their memory, and does not
// wait for it.
func askedForMemory(dir string) error {
	s, err := runs.ReadStatus(dir)
	if err == nil && s.Socket == "" {
		err = fmt.Errorf("ask for an account of memory: no process is running that could be asked")
	}
	if err == nil {
		_, err = worker.Ask(s.Socket)
	}
	return err
}

// answers waits until so many processes of the run in dir have accounted for their memory after the
// given time, but no longer than [answerMost]. It returns how many have.
func answers(ctx context.Context, dir string, since time.Time, asked int) int {
	look, over := time.NewTicker(answerLook), time.NewTimer(answerMost)
	defer look.Stop()
	defer over.Stop()
	for {
		entries, _ := runs.ReadJournal(dir) // the end of a line may not have been written yet
		done := map[int]bool{}
		for _, e := range entries {
			if b := e.Breakdown; b != nil && b.When == memory.WhenAsked && b.Device == memory.OnHost && !e.Time.Before(since) { // the host's comes last
				done[b.PID] = true
			}
		}
		if len(done) >= asked {
			return len(done)
		}
		select {
		case <-ctx.Done():
			return len(done)
		case <-over.C:
			return len(done)
		case <-look.C:
		}
	}
}

// full returns the whole answer as text.
func (h holding) full() string {
	var b strings.Builder
	switch {
	case h.Asked > h.Answered:
		fmt.Fprintf(&b, "of the %d processes that train, %d answered within %v: an account is taken when a step has ended\n", h.Asked, h.Answered, answerMost)
	case h.State == runs.StateRunning && h.Asked == 0:
		fmt.Fprintf(&b, "%s is running, but no process of it has trained so far\n", h.Run)
	}
	if len(h.Memory) == 0 {
		fmt.Fprintf(&b, "no account of the memory of %s was taken: that is done when memory runs out or begins to grow, and on request while a run trains\n", h.Run)
	}
	for _, d := range h.Memory {
		fmt.Fprintf(&b, "%s, %s, at %s:\n", d.Where(), d.Occasion(), d.Time.Local().Format(time.DateTime))
		table(&b, func(w *tabwriter.Writer) {
			for _, s := range d.Shares {
				fmt.Fprintf(w, "  %v\t%v\t%.1f %%\n", s, s.Bytes, 100*float64(s.Bytes)/float64(d.Total))
			}
			fmt.Fprintf(w, "  total\t%v\n", d.Total)
		})
	}
	if h.Holder != nil {
		fmt.Fprintf(&b, "%v\n", h.Holder)
	}
	return b.String()
}

// aboutRun reports whether the command line names a run, and no command.
func aboutRun(c *cli.Context) bool {
	if wordsOf(c) != nil || c.Args().Len() != 1 || configs.IsCommand(c.Args().First()) {
		return false
	}
	_, err := runFolder(c.Args().First())
	return err == nil
}
