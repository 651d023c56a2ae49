package cuda

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"headroom/memory"
)

// Unknown is the value of a number that NVML does not give. Names that it does
// not give are "", lists that it does not give are nil (and empty but not nil
// where there is nothing to list).
const Unknown = -1

// NVMLUnavailable is why GPUs cannot be watched. They may still be usable.
type NVMLUnavailable struct{ Reason string }

func (e *NVMLUnavailable) Error() string { return "no NVML: " + e.Reason }

// A GPU is what NVML tells of one GPU at one moment. Of a GPU that is cut into
// MIG slices it is the whole.
type GPU struct {
	Index          int          `json:"index"` // as NVML and nvidia-smi count; CUDA may count otherwise
	UUID           string       `json:"uuid"`  // "GPU-" and 32 hexadecimal digits in groups
	Name           string       `json:"name"`
	PCI            string       `json:"pci"` // domain:bus:device.function
	Total          memory.Bytes `json:"total"`
	Free           memory.Bytes `json:"free"`
	Used           memory.Bytes `json:"used"`            // includes Reserved where that is Unknown
	Reserved       memory.Bytes `json:"reserved"`        // by the driver, for nobody's use
	Utilisation    int          `json:"utilisation"`     // per cent of the last sampling period in which a kernel ran
	Temperature    int          `json:"temperature"`     // °C
	Throttled      []string     `json:"throttled"`       // what holds the clocks back, in words
	UncorrectedECC int64        `json:"uncorrected_ecc"` // memory errors since the driver was loaded
	Holders        []Holder     `json:"holders"`         // largest first
}

// MarshalJSON leaves out what is not known.
func (g GPU) MarshalJSON() ([]byte, error) {
	type plain GPU
	return known(plain(g))
}

// known is v, a structure, as JSON without the fields that NVML does not give.
func known(v any) ([]byte, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, err
	}
	maps.DeleteFunc(fields, func(_ string, v json.RawMessage) bool {
		return string(v) == strconv.Itoa(Unknown) || string(v) == `""` || string(v) == "null"
	})
	return json.Marshal(fields)
}

// A Holder is a process that holds memory of a GPU.
type Holder struct {
	PID   int          `json:"pid"`
	Name  string       `json:"name"` // its command; "" if it is not to be seen from here
	Bytes memory.Bytes `json:"bytes"`
	Self  bool         `json:"self,omitempty"` // this very process
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

// Driver is the versions of what is installed; "" where one is not given.
type Driver struct {
	Version string `json:"version,omitempty"` // such as "580.159.03"
	NVML    string `json:"nvml,omitempty"`
	CUDA    string `json:"cuda,omitempty"` // the newest that the driver serves, such as "13.0"
}

// GPUs are all GPUs of the machine, whether CUDA may use them or not. It opens
// no device. An error is a *[NVMLUnavailable]; what is missing of a GPU is
// Unknown. Safe for concurrent use.
func GPUs() ([]GPU, error) { return gpus() }

// GPUOf is the GPU that CUDA counts as ordinal, which CUDA_VISIBLE_DEVICES and
// CUDA_DEVICE_ORDER decide. Errors are a *[driver.Unavailable], a
// *[NVMLUnavailable], or the driver's for an ordinal that is not visible. Safe
// for concurrent use.
func GPUOf(ordinal int) (GPU, error) {
	found, err := gpusOf(ordinal)
	if err != nil {
		return GPU{}, err
	}
	return found[0], nil
}

// gpusOf asks CUDA who they are, and NVML once about all GPUs.
func gpusOf(ordinals ...int) ([]GPU, error) {
	found := make([]GPU, len(ordinals))
	for i, ordinal := range ordinals {
		var err error
		if found[i].UUID, err = uuidOf(ordinal); err != nil {
			return nil, err
		}
	}
	all, err := gpus()
	if err != nil {
		return nil, err
	}
	for i, ordinal := range ordinals {
		at := slices.IndexFunc(all, func(g GPU) bool { return g.UUID == found[i].UUID })
		if at < 0 {
			return nil, &NVMLUnavailable{fmt.Sprintf("it does not list the GPU that CUDA counts as %d (%s)", ordinal, found[i].UUID)}
		}
		found[i] = all[at]
	}
	return found, nil
}

// VisibleGPUs are those that CUDA may use, in the order in which it counts them.
// Errors are those of [GPUOf].
func VisibleGPUs() ([]GPU, error) {
	n, err := countVisible()
	if err != nil || n == 0 {
		return nil, err
	}
	ordinals := make([]int, n)
	for i := range ordinals {
		ordinals[i] = i
	}
	return gpusOf(ordinals...)
}

// DriverVersions says what is installed. An error is a *[NVMLUnavailable].
func DriverVersions() (Driver, error) { return driverVersions() }

// namedTakers is how many processes [Took] names.
const namedTakers = 3

// Took names the other processes that hold more of a GPU now than before:
// "python (pid 4711) took 21.3 GiB", largest first. It is empty if there are
// none, and also if this process is not among now's holders although it uses the
// GPU: its pids then are another namespace's, and one of them may be this process.
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
			said = append(said, fmt.Sprintf("%v came, holding an unknown amount", h))
			continue
		}
		said = append(said, fmt.Sprintf("%v took %v", h, h.Bytes))
	}
	if rest := len(takers) - namedTakers; rest > 0 {
		said = append(said, fmt.Sprintf("and %d more", rest))
	}
	return strings.Join(said, ", ")
}

// grown is how much more h holds than it did before: 0 if not more, or not
// known of a process that was already there; Unknown of a new one.
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

// An Xid is an error of a GPU that the driver reports, whichever process caused
// it.
type Xid struct {
	Time time.Time `json:"time"` // when it was received
	GPU  int       `json:"gpu"`  // GPU.Index
	UUID string    `json:"uuid"`
	Code int       `json:"code"`
}

func (x Xid) String() string {
	text := fmt.Sprintf("Xid %d on GPU %d", x.Code, x.GPU)
	if x.GPU == Unknown {
		text = fmt.Sprintf("Xid %d on an unknown GPU", x.Code)
	}
	if meaning := xids[x.Code]; meaning != "" {
		text += ": " + meaning
	}
	return text
}

// xids are the codes that end a job or explain its end, after NVIDIA's list of
// Xid errors.
var xids = map[int]string{
	13:  "exception in a kernel, mostly an illegal access",
	31:  "memory page fault: a kernel used an address that is not mapped",
	43:  "a kernel failed and its channel was stopped",
	45:  "work was cleaned away: the process was killed or failed before",
	48:  "memory error that ECC could not correct",
	61:  "internal micro-controller breakpoint",
	62:  "internal micro-controller halted",
	63:  "a memory row or page was recorded for replacement",
	64:  "a memory row or page could not be recorded for replacement",
	74:  "NVLink error",
	79:  "the GPU has fallen off the bus",
	92:  "many memory errors that ECC corrected",
	94:  "contained memory error: only the processes that used the memory are affected",
	95:  "uncontained memory error: the GPU must be reset",
	109: "context switch timed out",
	119: "the GPU's system processor did not answer in time",
	120: "the GPU's system processor failed",
	140: "memory error that was not recovered from",
}

// xidWait is how long one wait for events lasts, and so how long Close may.
const xidWait = 100 * time.Millisecond

// source is where a Watcher's events come from. It is used by one goroutine.
type source interface {
	// wait blocks until there is an event or d has passed; ok tells which.
	wait(d time.Duration) (x Xid, ok bool, err error)
	close()
}

// Watcher receives the Xid events of all GPUs until it is closed.
type Watcher struct {
	events chan Xid
	done   chan struct{}
	cancel context.CancelFunc
	err    error // set before done is closed
}

// Watch begins to receive Xid events; those of before are not told. It ends with
// ctx, with Close, or when NVML fails. Errors: a *[NVMLUnavailable], also where
// no GPU reports such events.
func Watch(ctx context.Context) (*Watcher, error) {
	s, err := openXids()
	if err != nil {
		return nil, err
	}
	return watch(ctx, s), nil
}

func watch(ctx context.Context, s source) *Watcher {
	ctx, cancel := context.WithCancel(ctx)
	w := &Watcher{events: make(chan Xid), done: make(chan struct{}), cancel: cancel}
	go w.run(ctx, s)
	return w
}

func (w *Watcher) run(ctx context.Context, s source) {
	defer close(w.done)
	defer close(w.events)
	defer w.cancel()
	defer s.close()
	for ctx.Err() == nil {
		x, ok, err := s.wait(xidWait)
		if err != nil {
			w.err = err
			return
		}
		if !ok {
			continue
		}
		select {
		case w.events <- x:
		case <-ctx.Done():
			return
		}
	}
}

// Events is closed when the watch has ended; Close then says why.
func (w *Watcher) Events() <-chan Xid { return w.events }

// Close ends the watch and waits until nothing of it is left: 0.1 s at most. It
// returns what had ended the watch before, such as a *[device.Lost], or nil. It
// may be called more than once, from any goroutine.
func (w *Watcher) Close() error {
	w.cancel()
	<-w.done
	return w.err
}
