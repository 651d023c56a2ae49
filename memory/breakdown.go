package memory

import (
	"cmp"
	"fmt"
	"slices"
)

// Kind says what memory is held for.
type Kind string

// The kinds, in the order in which people are shown them. A worker reports those up to Pieces.
const (
	Weights     Kind = "weights"
	Gradients   Kind = "gradients"
	Optimizer   Kind = "optimizer" // its state
	Buffers     Kind = "buffers"
	Activations Kind = "activations" // of the step under way
	Kept        Kind = "kept"        // any other tensor: results, graphs and inputs that something holds
	Pieces      Kind = "pieces"      // free in the allocator, beside what is in use in the same segment
	Cache       Kind = "cache"       // free in the allocator otherwise
	Libraries   Kind = "libraries"   // what libraries and the context hold, past the allocator
	Others      Kind = "others"      // one other process, which the share names
	Driver      Kind = "driver"      // kept by the driver; no process can use it
	Nameless    Kind = "unknown"
	Unused      Kind = "free"
)

var kinds = []Kind{Weights, Gradients, Optimizer, Buffers, Activations, Kept, Pieces, Cache, Libraries, Others, Driver, Nameless, Unused}

// names are what people are shown.
var names = map[Kind]string{
	Weights: "weights", Gradients: "gradients", Optimizer: "optimizer's state", Buffers: "buffers", Activations: "this step's activations and inputs",
	Kept: "kept results, graphs and inputs", Pieces: "free, but in pieces", Cache: "free in the cache", Libraries: "libraries and context",
	Others: "other processes", Driver: "the driver", Nameless: "unknown", Unused: "free",
}

// String returns what people are shown.
func (k Kind) String() string { return cmp.Or(names[k], string(k)) }

// Share is the part of a memory that is held for one purpose.
type Share struct {
	Kind  Kind   `json:"kind"`
	Bytes Bytes  `json:"bytes"`
	PID   int    `json:"pid,omitempty"`  // of another process
	Name  string `json:"name,omitempty"` // of its program; "" if it is not known
}

// String returns what the share is held for, in words.
func (s Share) String() string {
	switch {
	case s.Kind != Others || s.PID == 0:
		return s.Kind.String()
	case s.Name == "":
		return fmt.Sprintf("pid %d", s.PID)
	}
	return fmt.Sprintf("%s (pid %d)", s.Name, s.PID)
}

// Breakdown is all of one memory at one moment, by what it is held for. The shares add up to Total,
// and none is negative.
type Breakdown struct {
	Device string  `json:"device"` // "host" is the memory of one process; otherwise a GPU, as PyTorch names it
	PID    int     `json:"pid"`    // the process that has taken it
	Step   int     `json:"step"`   // of that process: the one that failed, or the newest that had ended
	When   When    `json:"when"`
	Total  Bytes   `json:"total"`
	Shares []Share `json:"shares"` // in the order of their kinds; without those of no bytes
	// Fragments says how what is free in the allocator lies; nil if that is not known.
	Fragments *Fragments `json:"fragments,omitempty"`
}

// When says on what occasion a [Breakdown] was taken.
type When string

// The occasions.
const (
	AtFailure When = "failed"
	AtGrowth  When = "grows" // memory had begun to grow, or it was found what holds it
	WhenAsked When = "asked"
)

// OnHost is the Device of a [Breakdown] of a process's memory on the host.
const OnHost = "host"

// Held is what a process reports of a memory that it uses.
type Held struct {
	Device    string
	Kinds     map[Kind]Bytes // of tensors, and of what is free in the allocator
	Total     Bytes          // of the device; on the host, what the process has
	Free      Bytes          // of the device
	Reserved  Bytes          // of the device, by the process's allocator
	Base      Bytes          // on the host, what the process had when it had loaded its libraries
	Fragments *Fragments
}

// Seen is what the driver reports of a device. An amount that is not known is negative.
type Seen struct {
	Total, Free, Driver Bytes
	Self                Bytes   // of the process that reports
	Others              []Share // the other processes; empty if it is not known which of them is the one that reports
}

// Divide puts together what a process and the driver report. seen is nil if the driver reports
// nothing, and for the host. What neither of them accounts for is unknown. Where both report more
// than there is, because they did not look at the same moment, the figures that come first count:
// those of tensors.
func Divide(h Held, seen *Seen) Breakdown {
	total, free := h.Total, h.Free
	if seen != nil && seen.Total >= 0 && seen.Free >= 0 {
		total, free = seen.Total, seen.Free
	}
	b := Breakdown{Device: h.Device, Fragments: h.Fragments}
	tensors := Bytes(0)
	for _, k := range kinds[:slices.Index(kinds, Libraries)] {
		tensors += max(0, h.Kinds[k])
	}
	b.Total = max(total, tensors) // such as memory that a file backs, which is not counted as the process's
	left := b.Total
	take := func(s Share) {
		if s.Bytes = min(max(0, s.Bytes), left); s.Bytes > 0 {
			b.Shares, left = append(b.Shares, s), left-s.Bytes
		}
	}
	for _, k := range kinds[:slices.Index(kinds, Libraries)] {
		take(Share{Kind: k, Bytes: h.Kinds[k]})
	}
	take(Share{Kind: Unused, Bytes: free})
	switch {
	case h.Device == OnHost:
		take(Share{Kind: Libraries, Bytes: h.Base})
	case seen != nil:
		take(Share{Kind: Libraries, Bytes: seen.Self - h.Reserved})
		for _, s := range seen.Others {
			take(s)
		}
		take(Share{Kind: Driver, Bytes: seen.Driver})
	}
	take(Share{Kind: Nameless, Bytes: left})
	slices.SortStableFunc(b.Shares, func(x, y Share) int {
		return cmp.Compare(slices.Index(kinds, x.Kind), slices.Index(kinds, y.Kind))
	})
	return b
}

// Of returns the bytes of all shares of a kind.
func (b Breakdown) Of(k Kind) (n Bytes) {
	for _, s := range b.Shares {
		if s.Kind == k {
			n += s.Bytes
		}
	}
	return n
}

// Used returns the bytes that are not free.
func (b Breakdown) Used() Bytes { return b.Total - b.Of(Unused) }

// Where says which memory b is about.
func (b Breakdown) Where() string {
	if b.Device == OnHost {
		return fmt.Sprintf("memory of process %d on the host", b.PID)
	}
	return fmt.Sprintf("memory of %s, as process %d uses it", b.Device, b.PID)
}

// Occasion says when b was taken.
func (b Breakdown) Occasion() string {
	switch b.When {
	case AtFailure:
		return fmt.Sprintf("when step %d ran out of memory", b.Step)
	case AtGrowth:
		return fmt.Sprintf("after step %d, when memory was seen to grow", b.Step)
	}
	return fmt.Sprintf("after step %d", b.Step)
}

// String says in one sentence what the memory is held for, the largest shares first.
func (b Breakdown) String() string {
	shares := slices.DeleteFunc(slices.Clone(b.Shares), func(s Share) bool { return s.Kind == Unused })
	slices.SortStableFunc(shares, func(x, y Share) int { return cmp.Compare(y.Bytes, x.Bytes) })
	text := fmt.Sprintf("%s, %s: %v in use", b.Where(), b.Occasion(), b.Used())
	for i, s := range shares {
		text += map[bool]string{true: "; ", false: ", "}[i == 0] + fmt.Sprintf("%v %v", s.Bytes, s)
	}
	return text
}
