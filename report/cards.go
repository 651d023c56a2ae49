package report

import (
	"fmt"
	"math"
	"strings"

	"headroom/memory"
	"headroom/report/words"
)

// Card answers one question about the run. The page's first screen and the head of the
// Markdown report show the same cards.
type Card struct {
	Question string
	Answer   string
	Note     string   // the numbers behind the answer; may be empty
	Lines    []string // further numbers, one line each
	Tone     Tone

	unknown bool // nothing was recorded that could answer the question
}

// Cards returns the report's cards, in the order in which people ask their questions.
func (r *Report) Cards() []Card {
	cards := r.body.cards(r)
	if w := r.Watched; w.Readings+len(w.Faults)+w.DeviceGone > 0 {
		cards = append(cards, w.card())
	}
	return cards
}

// Brief returns the report in a few lines of plain text, for a message: how the run stands, what to do next if it has
// failed, and the cards that have an answer.
func (r *Report) Brief() []string {
	lines := []string{r.Outcome.Title}
	if r.Outcome.State == Failed && len(r.Advice) > 0 {
		lines = append(lines, "Next: "+r.Advice[0])
	}
	for _, c := range r.Cards() {
		if !c.unknown {
			lines = append(lines, c.Question+": "+c.Answer)
		}
	}
	return lines
}

func (r *Report) batchCard() Card {
	a := r.Accounting
	c := Card{Question: "Effective batch", Answer: string(a.State), Note: a.Sum, Tone: Info}
	if a.Steps == 0 {
		return c
	}
	switch a.State {
	case Held:
		c.Tone = Good
		c.Answer = fmt.Sprintf("kept: %s samples in every step", words.Count(a.Effective))
	case Broken:
		c.Tone = Bad
		c.Answer = "NOT kept"
	default:
		c.Tone = Warn
	}
	if a.Redone > 0 {
		c.Note += fmt.Sprintf("; %s repeated after going back to a checkpoint", words.Plural(a.Redone, "step"))
	}
	return c
}

func (r *Report) failureCard() Card {
	f := r.Failures
	c := Card{Question: "Out of memory", Answer: r.body.noFailure, Tone: Good}
	if f.Total > 0 {
		c.Answer, c.Tone = words.Plural(f.Total, "time")+", "+f.end(), Info
		if f.Fatal {
			c.Tone = Bad
		}
	}
	var notes []string
	for _, cause := range f.told() {
		text := fmt.Sprintf("%s × %s", words.Count(cause.N), cause.name())
		if f.Lost > 0 && len(f.Causes) > 1 {
			c.Lines = append(c.Lines, text+": "+words.Seconds(cause.Lost))
		} else {
			notes = append(notes, text)
		}
	}
	if c.Lines != nil && f.Other > 0.05 {
		c.Lines = append(c.Lines, "everything else: "+words.Seconds(f.Other))
	}
	if f.Lost > 0 {
		notes = append(notes, fmt.Sprintf("%s lost to failures and searches (%s of the time)", words.Seconds(f.Lost), words.Percent(f.Share)))
	}
	if f.Uncounted > 0 {
		notes = append(notes, fmt.Sprintf("the time lost to %s is not known", words.Plural(f.Uncounted, "failure")))
	}
	c.Note = strings.Join(notes, ", ")
	return c
}

func (r *Report) memoryCard() Card {
	m := r.Memory
	c := Card{Question: "Memory", Answer: "not recorded", Tone: Info, unknown: m.Peak == 0}
	if c.unknown {
		if m.Capacity > 0 {
			c.Note = fmt.Sprintf("capacity %v", m.Capacity)
		}
		return c
	}
	c.Answer = fmt.Sprintf("peak %v of %v", m.Peak, known(m.Capacity))
	if !math.IsNaN(m.Headroom) {
		c.Note = "headroom " + words.Percent(m.Headroom)
		if m.Tightest < m.Headroom-0.005 {
			c.Note += fmt.Sprintf(", %s at its tightest (step %s)", words.Percent(m.Tightest), words.Count(m.TightestStep))
		}
	}
	if m.PeakReserved > 0 {
		c.Note += fmt.Sprintf("; reserved up to %v", m.PeakReserved)
	}
	switch {
	case m.Foreign > 0 && r.Simulated:
		c.Note += fmt.Sprintf("; device.squeeze, which simulates another process, took up to %v", m.Foreign)
	case m.Foreign > 0:
		c.Note += fmt.Sprintf("; other processes held up to %v", m.Foreign)
	}
	if len(m.Ranks) > 0 {
		c.Note += "; " + m.Ranks[0].slowest()
		for _, rank := range m.Ranks[1:] {
			c.Lines = append(c.Lines, rank.String())
		}
	} else if m.Host > 0 {
		c.Note += fmt.Sprintf("; up to %v of the host's memory was used in place of the GPU's", m.Host)
		if m.HostLost >= 1 {
			c.Note += ", which took " + words.Seconds(m.HostLost)
		}
	}
	if text := phases(r.seen); text != "" {
		c.Note += "; " + text
	}
	return c
}

func known(b memory.Bytes) string {
	if b <= 0 {
		return "an unknown capacity"
	}
	return b.String()
}

func (r *Report) speedCard() Card {
	s := r.Speed
	c := Card{Question: "Throughput", Answer: "not recorded", Tone: Info, unknown: math.IsNaN(s.Median)}
	if c.unknown {
		return c
	}
	c.Answer = words.Number(s.Median) + " samples/s"
	switch {
	case !math.IsNaN(s.Before) && !math.IsNaN(s.After):
		c.Note = fmt.Sprintf("%s before the first failure, %s after the last change (%+.0f %%)", words.Number(s.Before), words.Number(s.After), 100*(s.After/s.Before-1))
	case !math.IsNaN(s.After):
		c.Note = fmt.Sprintf("%s after the last change", words.Number(s.After))
	}
	if c.Note != "" {
		c.Note += "; "
	}
	c.Note += words.Seconds(s.InSteps) + " in steps"
	return c
}

func (r *Report) lossCard() Card {
	l := r.Loss
	c := Card{Question: "Loss", Answer: "not recorded", Tone: Info, unknown: len(r.steps) == 0}
	if c.unknown {
		return c
	}
	c.Answer = fmt.Sprintf("%s → %s", words.Number(l.First), words.Number(l.Last))
	if l.LowestStep > 0 {
		c.Note = fmt.Sprintf("lowest %s at step %s", words.Number(l.Lowest), words.Count(l.LowestStep))
	}
	if l.NotFinite > 0 {
		c.Tone = Warn
		c.Note += fmt.Sprintf("; NaN or infinite in %s", words.Plural(l.NotFinite, "step"))
	}
	return c
}

func (r *Report) checkpointCard() Card {
	k := r.Checkpoints
	c := Card{Question: "Checkpoints", Answer: fmt.Sprintf("%s written", words.Count(k.Written)), Tone: Info, unknown: k.Written+k.Failed+k.Damaged == 0}
	if k.Written > 0 {
		c.Note = fmt.Sprintf("newest at step %s; ", words.Count(k.Newest))
	}
	c.Note += fmt.Sprintf("%s failed, %s damaged", words.Count(k.Failed), words.Count(k.Damaged))
	if k.Failed+k.Damaged > 0 {
		c.Tone = Warn
	}
	return c
}
