package worker

import (
	"encoding/json"
	"errors"
	"maps"
	"math"
	"slices"

	"headroom/memory"
	"headroom/runs"
)

const (
	// protocol is the version of the wire protocol.
	protocol = 2
	// lineMost is the longest line that may be sent in either direction, in bytes.
	lineMost = 1 << 20
	// textMost is the size, in bytes, to which a text from a process is cut.
	textMost = 4000
	// foundMost is the largest number of findings about a first step that are kept.
	foundMost = 32
)

// message is a message from a process. A process leaves out the fields that the
// message's type does not use.
type message struct {
	Type string `json:"type"`

	// hello
	V        int    `json:"v"`
	PID      int    `json:"pid"`
	Rank     int    `json:"rank"`
	World    int    `json:"world"`
	Training string `json:"training"` // what its launcher calls what it trains, "" if that is not known
	Python   string `json:"python"`
	Torch    string `json:"torch"`
	Headroom string `json:"headroom"`
	Mode     string `json:"mode"`

	// step, oom, survived, refused; amounts are in bytes
	ID        int64        `json:"id"`
	Step      int          `json:"step"`
	Rows      int          `json:"rows"`   // in the whole call
	Micro     int          `json:"micro"`  // rows that were run at once; 0 means all of them
	Pieces    int          `json:"pieces"` // how many pieces the rows were cut into
	Limit     *int         `json:"limit"`  // how many rows may run at once from now on, 0 for all of them; nil if that is not known
	Seconds   float64      `json:"seconds"`
	Phase     memory.Phase `json:"phase"`
	Where     string       `json:"where"` // file:line of the user's code
	Requested memory.Bytes `json:"requested"`
	Free      memory.Bytes `json:"free"`
	Allocated memory.Bytes `json:"allocated"`
	Reserved  memory.Bytes `json:"reserved"`
	Capacity  memory.Bytes `json:"capacity"`
	Peak      memory.Bytes `json:"peak"`
	Forward   memory.Bytes `json:"forward"`  // allocated at the end of the step's forward pass
	Backward  memory.Bytes `json:"backward"` // allocated at the end of its backward pass
	Spilled   memory.Bytes `json:"spilled"`  // of the host's memory that the step used in place of the GPU's; also in note
	Lost      float64      `json:"lost"`     // seconds that the process's steps have taken longer for that so far

	// ready, tried; amounts are in bytes
	Times     int          `json:"times"` // micro-batches in an optimizer step
	Whole     bool         `json:"whole"` // the first step was made as a whole
	Fits      bool         `json:"fits"`
	Update    memory.Bytes `json:"update"`
	Weights   memory.Bytes `json:"weights"`
	Gradients memory.Bytes `json:"gradients"`
	States    memory.Bytes `json:"states"`
	Beside    memory.Bytes `json:"beside"` // may be negative
	Together  memory.Bytes `json:"together"`
	Full      memory.Bytes `json:"full"`
	Stays     memory.Bytes `json:"stays"`
	First     memory.Bytes `json:"first"`
	Keeps     bool         `json:"keeps"`
	Batches   Batches      `json:"batches"`

	// check
	Found []Checked `json:"found"`

	// survived
	Way runs.Way `json:"way"`
	Ago float64  `json:"ago"` // seconds since then: a process says so once nothing of the step can fail any more

	// refused
	Code  string `json:"code"`  // the kind of reason
	Mixed bool   `json:"mixed"` // the result depends on which rows are in a batch together
	Hint  string `json:"hint"`  // what the user can do, or ""

	// tracks
	Tracker string `json:"tracker"`
	Run     string `json:"run"` // its id; "" if another process cannot continue it

	// note
	Text  string `json:"text"`
	Level string `json:"level"`

	// holds; the fields of [memory.Holder], Seconds among them
	Kind    string       `json:"kind"`
	Name    string       `json:"name"`
	Kept    string       `json:"kept"`
	Made    string       `json:"made"`
	Tensors int          `json:"tensors"`
	Bytes   memory.Bytes `json:"bytes"`
	Rate    float64      `json:"rate"`
	Unit    string       `json:"unit"`
	PerStep memory.Bytes `json:"per_step"`
	Graph   bool         `json:"graph"`
	Host    bool         `json:"host"`
	Ends    int          `json:"ends"`
	Cure    string       `json:"cure"`

	// memory; the fields of [memory.Held], and those of oom
	Device string                       `json:"device"`
	UUID   string                       `json:"uuid"` // of the device, as its driver has it, but for a beginning such as "GPU-"
	Kinds  map[memory.Kind]memory.Bytes `json:"kinds"`
	Total  memory.Bytes                 `json:"total"`
	Base   memory.Bytes                 `json:"base"`

	Fragments *memory.Fragments `json:"fragments"` // also in oom and refused; nil if not known

	// hello, survived, refused, cannot; ready: why not in pieces; tried: why it could not be; memory: a [memory.When]
	Why string `json:"why"`
}

// Checked is a finding about one backward call of a first step, or about an
// out-of-memory failure in that step.
type Checked struct {
	Where   string  `json:"where"`             // file:line of the user's code
	Modules string  `json:"modules,omitempty"` // the classes of the step's modules
	Rows    int     `json:"rows,omitempty"`
	Pieces  int     `json:"pieces,omitempty"` // pieces compared with the whole batch
	Error   float64 `json:"error"`            // the largest difference, relative to the largest element of a gradient
	Why     string  `json:"why,omitempty"`    // why pieces would be wrong; "" if they are right
	How     string  `json:"how,omitempty"`    // how the failure was survived when memory ran out
}

// errLine reports a line that is not a message.
var errLine = errors.New("the line is not a message")

// rowsMost and bytesMost are more than any machine can handle; larger numbers
// are impossible.
const (
	rowsMost  = 1 << 30
	bytesMost = memory.Bytes(1) << 50
)

// parse reads a line. It replaces impossible numbers with 0, which means unknown, and
// truncates long texts, so that no message can lead to an invalid decision.
func parse(line []byte) (message, error) {
	var m message
	if err := json.Unmarshal(line, &m); err != nil || m.Type == "" {
		return m, errLine
	}
	for _, n := range []*int{&m.Step, &m.Rows, &m.Micro, &m.Pieces, &m.PID, &m.Rank, &m.World, &m.Tensors, &m.Ends, &m.Times} {
		if *n < 0 || *n > rowsMost {
			*n = 0
		}
	}
	if m.Limit != nil && (*m.Limit < 0 || *m.Limit > rowsMost) {
		m.Limit = nil
	}
	for _, n := range []*memory.Bytes{&m.Requested, &m.Free, &m.Allocated, &m.Reserved, &m.Capacity, &m.Peak, &m.Spilled, &m.Forward, &m.Backward, &m.Bytes, &m.PerStep, &m.Total, &m.Base, &m.Update, &m.Weights, &m.Gradients, &m.States, &m.Together, &m.Full, &m.Stays, &m.First} {
		if *n < 0 || *n > bytesMost {
			*n = 0
		}
	}
	if m.Beside < -bytesMost || m.Beside > bytesMost {
		m.Beside = 0
	}
	maps.DeleteFunc(m.Kinds, func(_ memory.Kind, n memory.Bytes) bool { return n <= 0 || n > bytesMost })
	if !possible(m.Fragments) {
		m.Fragments = nil
	}
	if !(m.Rate >= 0 && m.Rate <= rowsMost) {
		m.Rate = 0
	}
	if m.Seconds < 0 || m.Seconds > math.MaxInt32 {
		m.Seconds = 0
	}
	for _, text := range []*string{&m.Python, &m.Torch, &m.Headroom, &m.Mode, &m.Where, &m.Text, &m.Level, &m.Why, &m.Hint, &m.Code, &m.Kind, &m.Name, &m.Kept, &m.Made, &m.Cure, &m.Device, &m.UUID, &m.Training, (*string)(&m.Way), (*string)(&m.Phase)} {
		*text = (*text)[:min(len(*text), textMost)]
	}
	m.Batches = m.Batches.possible()
	m.Found = m.Found[:min(len(m.Found), foundMost)]
	for i := range m.Found {
		f := &m.Found[i]
		for _, text := range []*string{&f.Where, &f.Modules, &f.Why, &f.How} {
			*text = (*text)[:min(len(*text), textMost)]
		}
		for _, n := range []*int{&f.Rows, &f.Pieces} {
			*n = min(max(*n, 0), rowsMost)
		}
	}
	if m.Micro == 0 || m.Micro > m.Rows {
		m.Micro = m.Rows
	}
	return m, nil
}

// sizesMost is the largest number of sizes of pieces that are kept.
const sizesMost = 16

// possible reports whether f has no impossible numbers.
func possible(f *memory.Fragments) bool {
	if f == nil {
		return true
	}
	fine := func(number int, amounts ...memory.Bytes) bool {
		return number >= 0 && number <= rowsMost && !slices.ContainsFunc(amounts, func(n memory.Bytes) bool { return n < 0 || n > bytesMost })
	}
	return fine(f.Number, f.Pieces, f.Largest, f.Pages, f.Freed) && len(f.Sizes) <= sizesMost &&
		!slices.ContainsFunc(f.Sizes, func(s memory.PieceSizes) bool { return !fine(s.Number, s.Below, s.Bytes) })
}

// holder returns what holds memory that grows, which m reports.
func (m message) holder() memory.Holder {
	return memory.Holder{Kind: m.Kind, Name: m.Name, Kept: m.Kept, Made: m.Made, Step: m.Step, Tensors: m.Tensors, Bytes: m.Bytes, Rate: m.Rate, PerStep: m.PerStep, Graph: m.Graph, Host: m.Host, Ends: m.Ends, Seconds: m.Seconds, Unit: m.Unit, Cure: m.Cure}
}

// finished returns how many optimizer steps the process had finished when it sent m, or 0 if m does not say.
func (m message) finished() int {
	switch m.Type {
	case "step", "holds", "bye":
		return m.Step
	case "oom", "survived", "refused": // they name the step that failed
		return m.Step - 1
	}
	return 0
}

// held returns what the process reports of a memory that it uses.
func (m message) held() memory.Held {
	return memory.Held{Device: m.Device, Kinds: m.Kinds, Total: m.Total, Free: m.Free, Reserved: m.Reserved, Base: m.Base, Fragments: m.Fragments}
}

// failure returns the out-of-memory failure that m reports.
func (m message) failure() memory.OutOfMemoryError {
	return memory.OutOfMemoryError{Requested: m.Requested, Phase: m.Phase, Micro: m.Micro, Stats: m.stats(), Fragments: m.Fragments}
}

func (m message) stats() memory.Stats {
	return memory.Stats{Capacity: m.Capacity, Free: m.Free, Reserved: m.Reserved, Allocated: m.Allocated, Peak: m.Peak}
}

// answer is a message from headroom.
type answer struct {
	Type string `json:"type"`

	V     int   `json:"v,omitempty"`
	Mode  Mode  `json:"mode,omitempty"`
	Limit int   `json:"limit,omitempty"` // rows to run at once, as an earlier attempt has reported; 0 means all of them
	Micro int   `json:"micro,omitempty"` // rows to run at once at most, as the user has asked; 0 means any number
	Found bool  `json:"found,omitempty"` // that number was found: a step can be made in such pieces, and not as a whole
	ID    int64 `json:"id,omitempty"`

	Rows int          `json:"rows,omitempty"`      // of the trial to make
	Most memory.Bytes `json:"most,omitempty"`      // memory that the process may hold meanwhile; 0 means as much as there is
	Eval bool         `json:"evaluates,omitempty"` // without gradients, in evaluation mode
}
