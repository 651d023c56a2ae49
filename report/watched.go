package report

import (
	"fmt"
	"math"
	"strings"

	"headroom/report/words"
	"headroom/runs"
)

// Watched is what was seen of the device from outside the training.
type Watched struct {
	Readings    int
	Coolest     float64 // °C; NaN if not known
	Hottest     float64
	Utilisation float64 // median of the readings, per cent; NaN if not known
	Throttled   []Throttle
	ECC         int64        // highest count of uncorrected memory errors since the driver was loaded
	Faults      []runs.Fault // oldest first
	DeviceGone  int          // how many times the device was lost
}

// Throttle is a reason why the device's clocks were held back.
type Throttle struct {
	Word     string
	Readings int // number of readings with this reason
}

func watched(entries []runs.Entry) Watched {
	w := Watched{Coolest: math.NaN(), Hottest: math.NaN(), Utilisation: math.NaN()}
	var busy []float64
	for _, e := range entries {
		switch {
		case e.Kind == runs.KindGone:
			w.DeviceGone++
		case e.Fault != nil:
			w.Faults = append(w.Faults, *e.Fault)
		case e.Device != nil:
			w.read(*e.Device)
			if e.Device.Utilisation != nil {
				busy = append(busy, float64(*e.Device.Utilisation))
			}
		}
	}
	w.Utilisation = median(busy)
	return w
}

func (w *Watched) read(r runs.Reading) {
	w.Readings++
	if r.Temperature != nil {
		t := float64(*r.Temperature)
		if !(t >= w.Coolest) {
			w.Coolest = t
		}
		if !(t <= w.Hottest) {
			w.Hottest = t
		}
	}
	if r.UncorrectedECC != nil {
		w.ECC = max(w.ECC, *r.UncorrectedECC)
	}
	for _, word := range r.Throttled {
		w.throttled(word)
	}
}

func (w *Watched) throttled(word string) {
	for i := range w.Throttled {
		if w.Throttled[i].Word == word {
			w.Throttled[i].Readings++
			return
		}
	}
	w.Throttled = append(w.Throttled, Throttle{word, 1})
}

func (w Watched) card() Card {
	c := Card{Question: "Device", Answer: "not read", Tone: Info}
	var answer, notes []string
	switch {
	case w.Hottest > w.Coolest:
		answer = append(answer, fmt.Sprintf("%.0f to %.0f °C", w.Coolest, w.Hottest))
	case w.Hottest == w.Coolest:
		answer = append(answer, fmt.Sprintf("%.0f °C", w.Hottest))
	}
	if !math.IsNaN(w.Utilisation) {
		answer = append(answer, fmt.Sprintf("%.0f %% busy", w.Utilisation))
		notes = append(notes, "the busy share is the median of "+words.Plural(w.Readings, "reading"))
	}
	if w.DeviceGone > 0 {
		c.Tone = Warn
		answer = append(answer, "lost "+words.Plural(w.DeviceGone, "time"))
	}
	if answer != nil {
		c.Answer = strings.Join(answer, ", ")
	}
	for _, t := range w.Throttled {
		c.Tone = Warn
		notes = append(notes, fmt.Sprintf("clocks held back in %s of %s: %s", words.Count(t.Readings), words.Plural(w.Readings, "reading"), t.Word))
	}
	if w.ECC > 0 {
		c.Tone = Warn
		notes = append(notes, words.Plural(int(w.ECC), "uncorrected memory error")+" since the driver was loaded")
	}
	for i, f := range w.Faults {
		c.Tone = Warn
		if i == faultLimit {
			notes = append(notes, fmt.Sprintf("and %s", words.Plural(len(w.Faults)-i, "more fault")))
			break
		}
		notes = append(notes, fmt.Sprintf("%s %s: %s", day(f.Time), stamp(f.Time), clipped(f.Text, textLimit)))
	}
	c.Note = strings.Join(notes, "; ")
	return c
}

// faultLimit is the largest number of faults that a card names. The ledger
// lists all of them.
const faultLimit = 4
