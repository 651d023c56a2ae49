package nvml

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"headroom/memory"
)

// A Holder is a process that holds memory of a GPU.
type Holder struct {
	PID   int          `json:"pid"`
	Name  string       `json:"name"` // its command; "" if it cannot be seen from here
	Bytes memory.Bytes `json:"bytes"`
	Self  bool         `json:"self,omitempty"` // this process
}

// MarshalJSON leaves out what is not known.
func (h Holder) MarshalJSON() ([]byte, error) {
	type plain Holder
	return known(plain(h))
}

func newHolder(pid int, held memory.Bytes) Holder {
	h := Holder{PID: pid, Bytes: held, Self: pid == os.Getpid()}
	if comm, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm"); err == nil {
		h.Name = strings.TrimSpace(string(comm))
	}
	return h
}

func (h Holder) String() string {
	if h.Name == "" {
		return fmt.Sprintf("pid %d", h.PID)
	}
	return fmt.Sprintf("%s (pid %d)", h.Name, h.PID)
}

// namedTakers is how many processes [Took] names.
const namedTakers = 3

// Took names the other processes that hold more of a GPU now than before: "python
// (pid 4711) took 21.3 GiB", largest first. It is empty if there are none, and if
// this process is not among now's holders although it uses the GPU: the pids then
// belong to another namespace, and one of them may be this process.
func Took(before, now []Holder) string {
	if !slices.ContainsFunc(now, func(h Holder) bool { return h.Self }) {
		return ""
	}
	var takers []Holder // Bytes: what each took
	for _, h := range now {
		if taken := grown(before, h); !h.Self && taken != 0 {
			h.Bytes = taken
			takers = append(takers, h)
		}
	}
	largestFirst(takers)
	var said []string
	for _, h := range takers[:min(len(takers), namedTakers)] {
		if h.Bytes == Unknown {
			said = append(said, fmt.Sprintf("%v appeared, holding an unknown amount", h))
			continue
		}
		said = append(said, fmt.Sprintf("%v took %v", h, h.Bytes))
	}
	if rest := len(takers) - namedTakers; rest > 0 {
		said = append(said, fmt.Sprintf("and %d more", rest))
	}
	return strings.Join(said, ", ")
}

// grown is how much more h holds than it did before: 0 if no more, or if that
// is not known for a process that was already there; Unknown if it is not known
// for a new process.
func grown(before []Holder, h Holder) memory.Bytes {
	i := slices.IndexFunc(before, func(b Holder) bool { return b.PID == h.PID })
	switch {
	case i < 0:
		return h.Bytes
	case h.Bytes == Unknown || before[i].Bytes == Unknown:
		return 0
	}
	return max(0, h.Bytes-before[i].Bytes)
}

func largestFirst(h []Holder) {
	slices.SortFunc(h, func(a, b Holder) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.PID, b.PID))
	})
}
