package memory

import (
	"cmp"
	"fmt"
	"slices"
)

// Cause is why memory ran out.
type Cause string

// The causes. Each is a conclusion from evidence; [Unknown] is the conclusion if
// there is too little evidence.
const (
	Batch         Cause = "batch"         // the micro-batch is too large for the device
	Spike         Cause = "spike"         // this step needed clearly more than similar steps
	Fragmentation Cause = "fragmentation" // enough memory is unused, but in pieces that are too small
	Foreign       Cause = "foreign"       // another process took the memory
	Leak          Cause = "leak"          // the memory that stays allocated between steps keeps growing
	Resume        Cause = "resume"        // resuming from a checkpoint needs more memory than the training needed before
	Model         Cause = "model"         // weights, optimizer state or one sample alone do not fit
	Host          Cause = "host"          // the machine's memory ran out, not the device's
	Unknown       Cause = "unknown"       // the evidence does not say
)

// Thresholds of [Diagnose].
const (
	// LeakSteps is the smallest number of step boundaries that can show a leak. Fewer
	// often show only the warm-up of caches and workspaces.
	LeakSteps = 20
	// LeakShare is the smallest rise in memory over the examined boundaries that
	// counts as a leak, as a share of the capacity. At 80 GiB it is 1.6 GiB;
	// allocator noise between steps stays far below that.
	LeakShare = 0.02
	// LeakWindow is how many of the newest boundaries are examined. It bounds the
	// cost of computing the pairwise slopes.
	LeakWindow = 200
	// FragmentationShare is the share of the capacity that must be reserved but
	// unused for fragmentation to be the cause. PyTorch's allocator keeps 5 to 8 %
	// idle in good health, so a smaller share shows only that the last request was
	// small.
	FragmentationShare = 0.10
	// ForeignShare is the share of the capacity that other processes must hold for
	// them to be the cause even if they were there first. A smaller share may be no
	// more than what GPU contexts cost, including the context of this process.
	ForeignShare = 0.05
	// SpikeSteps is how many finished steps with the failing plan are needed before
	// their median peak counts as typical.
	SpikeSteps = 3
	// SpikeShare is how far a step's need must exceed the typical peak to count as a
	// spike. The peaks of similar steps differ by less than 2 % with PyTorch's
	// allocator.
	SpikeShare = 0.05
)

// Evidence is everything that [Diagnose] looks at. Every field except Failure may be
// zero, which means that it is not known.
type Evidence struct {
	Failure  OutOfMemoryError `json:"failure"`
	Baseline Stats            `json:"baseline"`           // the device's memory when the attempt began
	Boundary []Bytes          `json:"boundary,omitempty"` // bytes allocated after each finished step, or after every few steps, oldest first
	Every    int              `json:"every,omitempty"`    // how many steps lie between two values of Boundary; 0 means 1
	Typical  Bytes            `json:"typical,omitempty"`  // median peak of finished steps with the failing plan
	Like     int              `json:"like,omitempty"`     // number of steps from which Typical was computed
	MinMicro int              `json:"min_micro"`          // smallest micro-batch allowed
	Host     bool             `json:"host,omitempty"`     // host memory ran out, not the device's
	Holder   *Holder          `json:"holder,omitempty"`   // what holds memory that grows, as the process itself found it
	Resuming bool             `json:"resuming,omitempty"` // before it resumed from a checkpoint, the training had got further with a micro-batch at least as large as the one that failed
}

// Verdict is a cause and a sentence that supports it with numbers.
type Verdict struct {
	Cause Cause  `json:"cause"`
	Why   string `json:"why"`
}

func (v Verdict) String() string { return string(v.Cause) + ": " + v.Why }

// Diagnose finds out why memory ran out, from the evidence alone. It applies the
// following tests in order, beginning with those that rule out the most other causes.
// The first test that holds gives the verdict:
//
//	leak           the failure was the machine's memory, and what is known to hold more and more of it explains that
//	host           the failure was the machine's memory
//	unknown        nothing is known about the device's memory
//	foreign        requested ≤ free + what others took since the attempt began, or others hold at
//	               least [ForeignShare] of the capacity and requested ≤ free + what they hold
//	resume         before it resumed from a checkpoint, the training had got further with a
//	               micro-batch at least as large as the one that failed
//	fragmentation  requested ≤ free + (reserved − allocated), and reserved − allocated is at least
//	               [FragmentationShare] of the capacity; where the pieces are known, no more than they are
//	leak           what is known to hold more and more memory explains the failure, or allocated
//	               between steps rises steadily over at least [LeakSteps] boundaries
//	spike          the failure was in a micro-batch, and needed more than the typical peak of similar
//	               steps by [SpikeShare]
//	model          the failure was not in a micro-batch, or was in the smallest one allowed
//	unknown        the size of the micro-batch is not known
//	batch          otherwise: a smaller micro-batch is possible and needs less
//
// The size of the request may be unknown: a framework's error may hold no numbers,
// and the device's memory is then filled in from outside. In that case, foreign
// requires that others have taken [ForeignShare] of the capacity since the attempt
// began. Fragmentation and spike are then skipped, because they compare sizes.
func Diagnose(e Evidence) Verdict {
	for _, test := range []func(Evidence) (Verdict, bool){
		held, hostMemory, noNumbers, foreign, resume, fragmentation, leak, spike, model,
	} {
		if v, ok := test(e); ok {
			return v
		}
	}
	return batch(e)
}

// held is leak for the machine's memory, of which nothing else is known.
func held(e Evidence) (Verdict, bool) {
	if e.Holder == nil || !e.Holder.Host || !e.Holder.Explains(e.Failure, e.Host) {
		return Verdict{}, false
	}
	return Verdict{Leak, e.Holder.Facts()}, true
}

func hostMemory(e Evidence) (Verdict, bool) {
	return Verdict{Host, fmt.Sprintf("the machine's own memory ran out (%s), not the device's", e.Failure.asked())}, e.Host
}

func noNumbers(e Evidence) (Verdict, bool) {
	return Verdict{Unknown, "nothing is known about the device's memory at the time of the failure"}, e.Failure.Stats.Capacity <= 0
}

func foreign(e Evidence) (Verdict, bool) {
	s, requested := e.Failure.Stats, e.Failure.Requested
	held := heldByOthers(s)
	large := func(n Bytes) bool { return float64(n) >= ForeignShare*float64(s.Capacity) }
	why := fmt.Sprintf("%s, while other processes hold %v of %v", e.Failure.Lack(), held, s.Capacity)
	grown := held - heldByOthers(e.Baseline)
	switch {
	case e.Baseline.Capacity > 0 && grown > 0 && (requested > 0 && requested <= s.Free+grown || requested <= 0 && large(grown)):
		why = fmt.Sprintf("%s, and other processes have taken %v since the attempt began (they now hold %v of %v)", e.Failure.Lack(), grown, held, s.Capacity)
	case requested <= 0 || !large(held) || requested > s.Free+held:
		return Verdict{}, false
	}
	if e.Failure.Others != "" {
		why += ": " + e.Failure.Others
	}
	return Verdict{Foreign, why}, true
}

func resume(e Evidence) (Verdict, bool) {
	return Verdict{Resume, e.Failure.Lack() + "; before it resumed from a checkpoint, training had got past this point with a micro-batch at least this large"}, e.Resuming
}

// heldByOthers returns how much of the capacity this process cannot hold because
// other processes hold it.
func heldByOthers(s Stats) Bytes { return s.Capacity - s.Available() }

func fragmentation(e Evidence) (Verdict, bool) {
	s, requested := e.Failure.Stats, e.Failure.Requested
	idle := s.Reserved - s.Allocated
	why := fmt.Sprintf("%s while %v was free and %v reserved but unused", e.Failure.asked(), s.Free, idle)
	switch f := e.Failure.Fragments; {
	case f != nil && f.Number > 0:
		idle = min(idle, f.Pieces)
		why = fmt.Sprintf("%s while %v was free and %v reserved but unused, %v", e.Failure.asked(), s.Free, idle, *f)
	case s.LargestFree > 0:
		why += fmt.Sprintf(", the largest block %v", s.LargestFree)
	}
	return Verdict{Fragmentation, why}, requested > 0 && requested <= s.Free+idle &&
		float64(idle) >= FragmentationShare*float64(s.Capacity)
}

func leak(e Evidence) (Verdict, bool) {
	if e.Holder != nil && e.Holder.Explains(e.Failure, e.Host) {
		return Verdict{Leak, e.Holder.Facts()}, true
	}
	recent := e.Boundary[max(0, len(e.Boundary)-LeakWindow):]
	if len(recent) < LeakSteps {
		return Verdict{}, false
	}
	slope, rises := Rising(recent, e.Failure.Stats.Capacity)
	rise, every := Bytes(slope*float64(len(recent)-1)), max(1, e.Every)
	why := fmt.Sprintf("memory held between steps rose by %v over the last %d steps, from %v to %v, %v per step",
		rise, len(recent)*every, recent[0], recent[len(recent)-1], Bytes(slope/float64(every)))
	return Verdict{Leak, why}, rises
}

// Rising reports whether memory keeps rising. held are two or more amounts, equally
// spaced in time. slope is the median of the slopes between all pairs of them, in
// bytes per interval. rises is true if the amounts rise by more than [LeakShare] of
// the capacity, both along that slope and from the first to the last.
func Rising(held []Bytes, capacity Bytes) (slope float64, rises bool) {
	slope = medianSlope(held)
	limit := Bytes(LeakShare * float64(capacity))
	return slope, Bytes(slope*float64(len(held)-1)) > limit && held[len(held)-1]-held[0] > limit
}

func spike(e Evidence) (Verdict, bool) {
	need := e.Failure.Needed()
	why := fmt.Sprintf("this step needed at least %v; the last %d similar steps peaked at %v",
		need, e.Like, e.Typical)
	return Verdict{Spike, why}, e.Failure.Requested > 0 && e.Failure.Phase.SizedByMicro() &&
		e.Like >= SpikeSteps && e.Typical > 0 && float64(need) > (1+SpikeShare)*float64(e.Typical)
}

func model(e Evidence) (Verdict, bool) {
	f := e.Failure
	if !f.Phase.SizedByMicro() {
		return Verdict{Model, fmt.Sprintf("%s; it needs %s, whatever the micro-batch", f.Lack(), f.Shortage())}, true
	}
	smallest := f.Micro > 0 && f.Micro <= max(1, e.MinMicro)
	return Verdict{Model, fmt.Sprintf("%s; micro-batch %d, the smallest allowed, needs %s", f.Lack(), f.Micro, f.Shortage())}, smallest
}

func batch(e Evidence) Verdict {
	f := e.Failure
	if f.Micro == 0 {
		return Verdict{Unknown, f.Lack() + "; it is not known which micro-batch this was in, if any"}
	}
	return Verdict{Batch, f.Lack()}
}

// medianSlope returns the Theil–Sen estimate: the median of the slopes between all
// pairs of points. A few outliers do not move it.
func medianSlope(y []Bytes) float64 {
	slopes := make([]float64, 0, len(y)*(len(y)-1)/2)
	for i := range y {
		for j := i + 1; j < len(y); j++ {
			slopes = append(slopes, float64(y[j]-y[i])/float64(j-i))
		}
	}
	slices.SortFunc(slopes, cmp.Compare[float64])
	return slopes[len(slopes)/2]
}
