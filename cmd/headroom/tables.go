package main

// The tables that commands answer with, on stdout.

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"headroom/cmd/headroom/ui"
	"headroom/memory"
	"headroom/recovery"
	"headroom/search"
)

// printStandings prints the table of runs.
func printStandings(u *ui.UI, all []standing) error {
	if len(all) == 0 {
		return nil
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "RUN\tSTATE\tSTEP\tSPEED\tLOSS\tMICRO\tPEAK\tOOM\tUPDATED")
	for _, s := range all {
		loss, micro, updated := "-", "-", "-"
		if s.Steps > 0 && s.Step > 0 {
			loss = fmt.Sprintf("%.3f", s.Loss)
		}
		if newest := s.newest(); !newest.IsZero() {
			updated = ago(u.Now(), newest)
		}
		if s.Plan.Micro > 0 && (s.Steps > 0 || s.Plan.Effective > 1) { // nothing is known about some commands
			micro = fmt.Sprintf("%d×%d", s.Plan.Largest(), s.Plan.Accumulation())
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\n",
			ui.Printable(s.Name), s.shown(), s.made(), s.speed(), loss, micro, s.memory(), s.Failures, updated)
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("status: %w", err)
	}
	for _, s := range all {
		if len(all) == 1 && s.Reason != "" {
			fmt.Fprintf(&b, "\n%s\n", ui.PrintableLines(s.Reason))
		}
		if len(all) == 1 && s.DeviceGone > 0 {
			fmt.Fprintf(&b, "\nthe device was lost %s in this run\n", ui.Plural(s.DeviceGone, "time"))
		}
	}
	return u.Answer(strings.TrimRight(b.String(), "\n"))
}

// shown returns the state of the run in one word.
func (s standing) shown() string {
	if s.Crash != nil {
		return "crashed"
	}
	return ui.Printable(string(s.State))
}

// ago says how long before now t was, as in "5m ago". If t is over a minute in the future or over
// ten years back, some clock must have been wrong, and ago returns the date of t.
func ago(now, t time.Time) string {
	const decade = 10 * 365 * 24 * time.Hour
	since := now.Sub(t) // saturates
	if since < -time.Minute || since > decade {
		return t.Format(time.DateOnly)
	}
	return ui.Briefly(max(0, since)) + " ago"
}

// String returns the answer of find for a configuration, as text.
func (f found) String() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	row := func(cells ...string) { fmt.Fprintln(w, strings.Join(cells, "\t")) }
	head := fmt.Sprintf("%v available", f.Available)
	if f.Device != "" {
		head = f.Device + ", " + head
	}
	row("device", head)
	row("largest", fmt.Sprintf("micro-batch %d: ran a whole step after the search, peak %v", f.Largest.Micro, f.Largest.Peak))
	row("memory", lineText(f.Line))
	row("", "micro-batch", "peak")
	for _, p := range byMicro(f.Probes) {
		peak := p.Peak.String()
		switch {
		case p.Fits:
		case p.Peak <= f.Available:
			peak = "does not fit: no free block was large enough"
		default:
			peak = unfit(p.Peak, f.Available)
		}
		row("", fmt.Sprint(p.N), peak)
	}
	row("speed", "micro-batch", "peak", "samples/s")
	for _, t := range f.Timings {
		row("", fmt.Sprintf("%d × %d", t.Micro, t.Accumulation), t.Peak.String(), strings.TrimSuffix(ui.Rate(t.PerSecond), " samples/s"))
	}
	_ = w.Flush() // into memory
	fmt.Fprintf(&b, "\nrecommended: %s\n%s", f.Reason, orLess(f.Enough, f.Recommended))
	if f.Recompute {
		fmt.Fprintf(&b, "activations are recomputed in the backward pass: nothing fits otherwise\n")
	}
	fmt.Fprintf(&b, "in the config: batch: {effective: %d, micro: %d}", f.Recommended.Effective, f.Recommended.Largest())
	return b.String()
}

// String returns the answer of find for a command, as text.
func (f foundMicro) String() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	row := func(cells ...string) { fmt.Fprintln(w, strings.Join(cells, "\t")) }
	row("command", fmt.Sprintf("%s: %v", f.Profile, f.Asked))
	head := "no GPU was found"
	if f.Device != "" {
		head = fmt.Sprintf("%s, %v available", f.Device, f.Available)
	}
	row("device", head)
	how := "ran until its memory use levelled off"
	if f.Largest.Steps > 0 {
		how = "ran for " + ui.Plural(f.Largest.Steps, "whole step")
	}
	if f.Largest.Peak > 0 {
		how += fmt.Sprintf(", peak %v", f.Largest.Peak)
	}
	row("largest", fmt.Sprintf("micro-batch %d: %s", f.Largest.Micro, how))
	if f.Line.PerSample > 0 {
		row("memory", lineText(f.Line))
	}
	row("trials", "micro-batch", "peak", "seconds", "samples/s")
	for _, t := range f.Trials {
		speed, peak := "-", "-"
		if t.PerSecond > 0 {
			speed = strings.TrimSuffix(ui.Rate(t.PerSecond), " samples/s")
		}
		if t.Peak > 0 {
			peak = t.Peak.String()
		}
		if !t.Fits {
			peak = unfit(t.Peak, t.Room)
		}
		row("", fmt.Sprintf("%d × %d", t.Micro, t.Accumulation), peak, fmt.Sprintf("%.0f", t.Seconds), speed)
	}
	_ = w.Flush() // into memory
	fmt.Fprintf(&b, "\nrecommended: %s\n%s", f.Reason, orLess(f.Enough, f.Recommended))
	if f.Diff == "" {
		b.WriteString("in the command: nothing to change")
		return b.String()
	}
	for _, what := range f.Prove {
		fmt.Fprintf(&b, "this change requires that %s\n", what)
	}
	b.WriteString("in the command:\n" + f.Diff)
	return strings.TrimRight(b.String(), "\n")
}

// unfit says that a micro-batch did not fit, and how much memory it would need. need is that
// amount, and there is the memory that was available; either is 0 if it is not known. If the two
// look the same when rounded, unfit gives their difference instead.
func unfit(need, there memory.Bytes) string {
	const text = "does not fit"
	switch {
	case need <= 0:
		return text
	case need > there && need.String() == there.String():
		return fmt.Sprintf("%s: needs %v more than is available", text, need-there)
	}
	return fmt.Sprintf("%s: needs at least %v", text, need)
}

// orLess offers enough, a smaller micro-batch that was about as fast as any, to users who want to
// leave more memory unused than the recommended plan does. It returns "" if enough is 0, or is no
// smaller than the recommended micro-batch.
func orLess(enough int, recommended recovery.Plan) string {
	if enough <= 0 || enough >= recommended.Largest() {
		return ""
	}
	return fmt.Sprintf("         or: %v, to leave more memory unused: in the few steps timed it was within 1 %% of the fastest\n", recommended.WithMicro(enough))
}

func lineText(l search.Line) string {
	if l.PerSample <= 0 {
		return "by micro-batch: unknown, because too few sizes fit"
	}
	return fmt.Sprintf("%v plus %v per sample", memory.Bytes(l.Base), memory.Bytes(l.PerSample))
}

// byMicro returns the probes sorted by size, one for each size and outcome: a size that fitted
// once but not another time appears twice. Of several probes of a size with the same outcome,
// it keeps the one with the largest peak.
func byMicro(probes []search.Probe) []search.Probe {
	sorted := slices.Clone(probes)
	slices.SortStableFunc(sorted, func(a, b search.Probe) int {
		outcome := 0
		if a.N == b.N && a.Fits != b.Fits {
			if outcome = 1; a.Fits {
				outcome = -1
			}
		}
		return cmp.Or(cmp.Compare(a.N, b.N), outcome, cmp.Compare(b.Peak, a.Peak))
	})
	return slices.CompactFunc(sorted, func(a, b search.Probe) bool { return a.N == b.N && a.Fits == b.Fits })
}
