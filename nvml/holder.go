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

// A Holder is a process that holds memory on a GPU.
type Holder struct {
	PID   int          `json:"pid"`
	Name  string       `json:"name"` // name of its command; "" if this process cannot see it
	Bytes memory.Bytes `json:"bytes"`
	Self  bool         `json:"self,omitempty"` // this process
}

// MarshalJSON leaves out the values that are not known.
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

// namedTakers is the largest number of processes that [Took] names.
const namedTakers = 3

// Took names the other processes that hold more of a GPU's memory in now than in before,
// such as "python (pid 4711) took 21.3 GiB". Those that took the most come first. It
// returns "" if there are none. It also returns "" if now does not list this process,
// which must itself be using the GPU: the PIDs then belong to another namespace, and one
// of them may be this process.
func Took(before, now []Holder) string {
	if !slices.ContainsFunc(now, func(h Holder) bool { return h.Self }) {
		return ""
	}
	var takers []Holder // Bytes is how much each process took
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

// grown returns how much more memory h holds than the same process did before, or 0
// if it does not hold more. If an amount is not known, it returns 0 for a process
// that was there before, and Unknown for a new one.
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
