package search

import (
	"fmt"

	"headroom/memory"
)

// Probe is one trial.
type Probe struct {
	N    int          `json:"n"`
	Peak memory.Bytes `json:"peak"` // peak that was measured, or, if the size did not fit, the least memory that it would have needed
	Fits bool         `json:"fits"`
}

// Line is peak memory as a function of the size: Base + PerSample·n bytes.
type Line struct {
	Base      float64 `json:"base"`
	PerSample float64 `json:"per_sample"`
}

// At returns the peak of n samples according to the line, in bytes.
func (l Line) At(n int) float64 { return l.Base + l.PerSample*float64(n) }

// Result is what a search found.
type Result struct {
	Max         int     `json:"max,omitempty"`   // largest size that the search was allowed to try
	Fits        int     `json:"fits"`            // largest size that fitted; 0 if none did
	Fails       int     `json:"fails,omitempty"` // smallest size that did not fit; 0 if none failed
	Recommended int     `json:"recommended"`     // largest size expected to leave the headroom, which was probed too; 0 if there is none
	Line        Line    `json:"line"`            // least-squares line through the probes that fitted; zero if fewer than two sizes did
	Probes      []Probe `json:"probes"`          // in the order they were made, confirmations included
	Searched    int     `json:"searched"`        // number of probes in the search itself; Probes[Searched:] confirm its answer
}

// String says in one line what is known about the largest size that fits. It
// claims no more than that: sizes between Fits and Fails were not tried.
func (r Result) String() string {
	switch {
	case r.Fits == 0 && r.Fails == 0:
		return "no micro-batch was tried"
	case r.Fits == 0:
		return fmt.Sprintf("not even micro-batch %d fits", r.Fails)
	case r.Fails == r.Fits+1:
		return fmt.Sprintf("micro-batch %d is the largest that fits", r.Fits)
	case r.Fails != 0:
		return fmt.Sprintf("the largest micro-batch that fits lies between %d and %d: %d fits, %d does not", r.Fits, r.Fails-1, r.Fits, r.Fails)
	case r.Fits == r.Max:
		return fmt.Sprintf("micro-batch %d fits and is the largest that was asked for", r.Fits)
	}
	return fmt.Sprintf("micro-batch %d fits and is the largest that was tried", r.Fits)
}
