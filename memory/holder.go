package memory

import (
	"cmp"
	"fmt"
	"math"
)

// Holder is what holds memory to which the steps of a training add, as the process itself found
// it. Its fields are facts; String makes the sentence.
type Holder struct {
	Kind    string  `json:"kind"`              // as in kinds.py of the worker: "collected", "sum", …; "elsewhere" if nothing was found, "unseen" if there were too few steps to look
	Name    string  `json:"name,omitempty"`    // as the script writes it, such as "self.history"; "" if it has none
	Kept    string  `json:"kept,omitempty"`    // the line that keeps, as FILE:LINE; "" if not known
	Made    string  `json:"made,omitempty"`    // the line that makes what is kept
	Step    int     `json:"step,omitempty"`    // after which it was found, as the process counts them; 0 if not known
	Tensors int     `json:"tensors,omitempty"` // that were held when it was found, or arrays, or workers
	Bytes   Bytes   `json:"bytes"`             // that they take, with their graphs
	Rate    float64 `json:"rate,omitempty"`    // tensors that are added per step
	PerStep Bytes   `json:"per_step"`          // by which memory grows per step
	Graph   bool    `json:"graph,omitempty"`   // the graphs that made the tensors are held, too
	Host    bool    `json:"host,omitempty"`    // the memory is the machine's, not a device's
	Ends    int     `json:"ends,omitempty"`    // the step near which the machine's memory ends at this rate; 0 if not known
	Seconds float64 `json:"seconds,omitempty"` // from Step until then
	Unit    string  `json:"unit,omitempty"`    // "model call" if steps are those of an evaluation; "" otherwise
	About   bool    `json:"about,omitempty"`   // Tensors and Bytes are what is to be expected after Step, not what was found
	Cure    string  `json:"cure,omitempty"`    // what to write instead; "" if not known
}

// The kinds of holders about which Holder itself knows something. The others differ only in their cure.
const (
	heldSum       = "sum"
	heldState     = "hidden-state"
	heldGradients = "gradients"
	heldArrays    = "numpy"
	heldWorkers   = "workers"
	heldElsewhere = "elsewhere"
	heldUnseen    = "unseen"
)

// String says what grows, what holds it, since which line, when memory ends, and what to write instead.
func (h Holder) String() string {
	text := h.Facts()
	if h.Ends > h.Step && h.Seconds <= ForecastMost {
		text += fmt.Sprintf("; at that rate memory runs out in about %s, near %s %d", InAbout(h.Seconds), h.unit(), h.Ends)
	}
	if h.Cure != "" {
		text += "; " + h.Cure
	}
	return text
}

// Facts is String without the cure.
func (h Holder) Facts() string {
	grows := fmt.Sprintf("memory grows by %v per %s: ", h.PerStep, h.unit())
	if h.Kind == heldElsewhere {
		return grows + "what holds it was not found among what Python can see"
	}
	if h.Kind == heldUnseen {
		return grows + "it ran out before it could be seen what holds it"
	}
	name := "a container without a name"
	if h.Name != "" {
		name = "`" + h.Name + "`"
	}
	if h.Kept != "" {
		name += " (" + h.Kept + ")"
	}
	text := grows + name + " holds " + h.content()
	if h.Made != "" && h.Made != h.Kept {
		text += ", made at " + h.Made
	}
	return text
}

// unit is what Step, Rate and PerStep count.
func (h Holder) unit() string { return cmp.Or(h.Unit, "step") }

// ForecastMost is the longest time until memory runs out for which that is said, in seconds: a day. Most runs
// end sooner.
const ForecastMost = 24 * 3600

// InAbout returns a number of seconds as people would say it, such as "6 h 20 min".
func InAbout(seconds float64) string {
	switch minutes := int(seconds / 60); {
	case minutes < 1:
		return "a minute"
	case minutes < 60:
		return fmt.Sprintf("%d min", minutes)
	default:
		return fmt.Sprintf("%d h %d min", minutes/60, minutes%60/10*10)
	}
}

// At returns h as it is to be expected after a later step, if it has grown on as it did.
func (h Holder) At(step int) Holder {
	if h.Kind == heldElsewhere || h.Kind == heldUnseen || h.Unit != "" || h.Step <= 0 || step <= h.Step {
		return h
	}
	more := step - h.Step
	h.Tensors += int(math.Round(h.Rate * float64(more)))
	h.Bytes += h.PerStep * Bytes(more)
	h.Step, h.About, h.Ends = step, true, 0
	return h
}

// content says how much is held, and how often more is added.
func (h Holder) content() string {
	about := ""
	if h.About {
		about = "about "
	}
	switch h.Kind {
	case heldGradients:
		return fmt.Sprintf("gradients with the graphs of all steps, %s%v", about, h.Bytes)
	case heldSum, heldState:
		return fmt.Sprintf("the graphs of all steps, %s%v", about, h.Bytes)
	case heldWorkers:
		if h.Tensors == 1 {
			return fmt.Sprintf("what a loader worker has loaded, %s%v", about, h.Bytes)
		}
		return fmt.Sprintf("what %d loader workers have loaded, %s%v", h.Tensors, about, h.Bytes)
	}
	what := "tensor"
	if h.Kind == heldArrays {
		what = "array"
	}
	if h.Tensors != 1 {
		what += "s"
	}
	if h.Graph {
		what += " with the graphs that made them"
	}
	when := ""
	if h.Step > 0 {
		when = fmt.Sprintf(" after %s %d", h.unit(), h.Step)
	}
	return fmt.Sprintf("%s%d %s, %s%v%s, %s", about, h.Tensors, what, about, h.Bytes, when, h.often())
}

func (h Holder) often() string {
	switch {
	case h.Rate >= 1.5:
		return fmt.Sprintf("%.0f more every %s", h.Rate, h.unit())
	case h.Rate >= 0.7:
		return "one more every " + h.unit()
	case h.Rate > 0:
		return fmt.Sprintf("one more every %.0f %ss", math.Round(1/h.Rate), h.unit())
	}
	return "more and more"
}

// Explains reports whether what h holds is why memory ran out: it is the memory in which the failure
// was, and without it the request would have fitted, as far as the sizes are known.
func (h Holder) Explains(f OutOfMemoryError, host bool) bool {
	s := f.Measured().Stats
	ofHost := host || s.Capacity <= 0 // a device's failure has numbers
	return h.Host == ofHost && (ofHost || h.Bytes >= f.Requested-s.Free)
}

// Hint is what the user can do about h.
func (h Holder) Hint() string {
	return cmp.Or(h.Cure, "find what keeps memory from step to step: it was not found among what Python can see")
}
