package memory

import (
	"cmp"
	"fmt"
	"slices"
)

// Cause is why memory ran out.
type Cause string

// The causes. A cause is a claim about evidence; [Unknown] is the honest one
// when there is too little of it.
const (
	Batch         Cause = "batch"         // the micro-batch is too large for the device
	Spike         Cause = "spike"         // this step needed far more than similar steps
	Fragmentation Cause = "fragmentation" // the bytes are there, but in pieces that are too small
	Foreign       Cause = "foreign"       // another process took the memory
	Leak          Cause = "leak"          // what stays allocated between steps keeps growing
	Resume        Cause = "resume"        // resuming from a checkpoint takes more than the training did
	Model         Cause = "model"         // weights, optimizer state or one sample alone do not fit
	Host          Cause = "host"          // the machine's memory ran out, not the device's
	Unknown       Cause = "unknown"       // the evidence does not say
)

// Thresholds of [Diagnose].
const (
	// LeakSteps is the fewest step boundaries that show a trend: fewer often
	// show only the warm-up of caches and workspaces.
	LeakSteps = 20
	// LeakShare of the capacity is how much of a rise, over the boundaries
	// examined, counts as a leak. At 80 GiB it is 1.6 GiB; allocator noise
	// between steps stays far below it.
	LeakShare = 0.02
	// LeakWindow is how many of the newest boundaries are examined. It bounds
	// the cost of the pairwise slopes.
	LeakWindow = 200
	// FragmentationShare of the capacity must be reserved but unused for
	// fragmentation to be the cause. PyTorch's allocator keeps 5 to 8 % idle in
	// good health, so less says only that the last request was small.
	FragmentationShare = 0.10
	// ForeignShare of the capacity held by others counts even if they were there
	// first. Less than that is what contexts cost, this process's own included.
	ForeignShare = 0.05
	// SpikeSteps is how many steps of the same micro-batch are needed to make their
	// median peak "typical".
	SpikeSteps = 3
	// SpikeShare is how far above the typical peak a need must be to count as a spike.
	// Peaks of similar steps differ by under 2 % on PyTorch's allocator.
	SpikeShare = 0.05
)

// Evidence is all that [Diagnose] looks at. Everything but Failure may be zero,
// which means not known.
type Evidence struct {
	Failure  OutOfMemoryError `json:"failure"`
	Baseline Stats            `json:"baseline"`           // when the attempt began
	Boundary []Bytes          `json:"boundary,omitempty"` // allocated after each finished step, or every few, oldest first
	Every    int              `json:"every,omitempty"`    // how many steps apart these are; 0 means 1
	Typical  Bytes            `json:"typical,omitempty"`  // median peak of finished steps with the failing plan
	Like     int              `json:"like,omitempty"`     // how many such steps
	MinMicro int              `json:"min_micro"`          // smallest micro-batch allowed
	Host     bool             `json:"host,omitempty"`     // host memory ran out, not the device's
	Resuming bool             `json:"resuming,omitempty"` // between a checkpoint and a step that the training had already reached with a micro-batch at least this large
}

// Verdict is a cause and the sentence, with its numbers, that supports it.
type Verdict struct {
	Cause Cause  `json:"cause"`
	Why   string `json:"why"`
}

func (v Verdict) String() string { return string(v.Cause) + ": " + v.Why }

// Diagnose says why memory ran out, from evidence alone. The tests are made in
// order of how much they exclude; the first that holds gives the verdict:
//
//	host           the failure was the machine's memory
//	unknown        nothing is known about the device's memory
//	foreign        requested ≤ free + what others took since the attempt began,
//	               or requested ≤ free + what they hold, if that is [ForeignShare] of the capacity
//	resume         the training had got further with a micro-batch at least this large, before it resumed from a checkpoint
//	fragmentation  requested ≤ free + (reserved − allocated), and that idle part is [FragmentationShare] of the capacity
//	leak           allocated between steps rises steadily over ≥ [LeakSteps] steps
//	spike          needed > typical peak of similar steps by [SpikeShare], in a micro-batch
//	model          not in a micro-batch, or already at the smallest one
//	batch          otherwise: a smaller micro-batch is possible and needs less
//
// Where the size of the request is not known (a framework's error without numbers,
// with the device's memory filled in from outside), foreign needs others to have
// taken [ForeignShare] of the capacity since the attempt began, and fragmentation
// and spike, which compare sizes, are left out.
func Diagnose(e Evidence) Verdict {
	for _, test := range []func(Evidence) (Verdict, bool){
		hostMemory, noNumbers, foreign, resume, fragmentation, leak, spike, model,
	} {
		if v, ok := test(e); ok {
			return v
		}
	}
	return batch(e)
}

func hostMemory(e Evidence) (Verdict, bool) {
	return Verdict{Host, fmt.Sprintf("the machine's own memory ran out (%s), not the device's", e.Failure.asked())}, e.Host
}

func noNumbers(e Evidence) (Verdict, bool) {
	return Verdict{Unknown, "nothing is known about the device's memory at the failure"}, e.Failure.Stats.Capacity <= 0
}

func foreign(e Evidence) (Verdict, bool) {
	s, requested := e.Failure.Stats, e.Failure.Requested
	held := heldByOthers(s)
	large := func(n Bytes) bool { return float64(n) >= ForeignShare*float64(s.Capacity) }
	why := fmt.Sprintf("%s, while other processes hold %v of %v", e.Failure.left(), held, s.Capacity)
	grown := held - heldByOthers(e.Baseline)
	switch {
	case e.Baseline.Capacity > 0 && grown > 0 && (requested > 0 && requested <= s.Free+grown || requested <= 0 && large(grown)):
		why = fmt.Sprintf("%s, after other processes took %v since the attempt began (now %v of %v)", e.Failure.left(), grown, held, s.Capacity)
	case requested <= 0 || !large(held) || requested > s.Free+held:
		return Verdict{}, false
	}
	if e.Failure.Others != "" {
		why += ": " + e.Failure.Others
	}
	return Verdict{Foreign, why}, true
}

func resume(e Evidence) (Verdict, bool) {
	return Verdict{Resume, fmt.Sprintf("the training had got further with a micro-batch at least this large, and resuming from a checkpoint needs %s", e.Failure.Shortage())}, e.Resuming
}

// heldByOthers is how much of the capacity a process cannot hold because of others.
func heldByOthers(s Stats) Bytes { return s.Capacity - s.Available() }

func fragmentation(e Evidence) (Verdict, bool) {
	s, requested := e.Failure.Stats, e.Failure.Requested
	idle := s.Reserved - s.Allocated
	why := fmt.Sprintf("%s while %v was free and %v reserved but unused", e.Failure.asked(), s.Free, idle)
	if s.LargestFree > 0 {
		why += fmt.Sprintf(", the largest block %v", s.LargestFree)
	}
	return Verdict{Fragmentation, why}, requested > 0 && requested <= s.Free+idle &&
		float64(idle) >= FragmentationShare*float64(s.Capacity)
}

func leak(e Evidence) (Verdict, bool) {
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

// Rising returns by how much each of two or more equally spaced amounts typically exceeds the one
// before (the median of all slopes), and whether they rise by more than [LeakShare] of the capacity, both along that
// slope and from the first to the last.
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
		return Verdict{Model, fmt.Sprintf("%s needs %s, whatever the micro-batch", f.Phase, f.Shortage())}, true
	}
	smallest := f.Micro > 0 && f.Micro <= max(1, e.MinMicro)
	return Verdict{Model, fmt.Sprintf("micro-batch %d, the smallest allowed, needs %s", f.Micro, f.Shortage())}, smallest
}

func batch(e Evidence) Verdict {
	f := e.Failure
	if f.Micro == 0 {
		return Verdict{Unknown, fmt.Sprintf("%s; the failure was not in any known micro-batch", f.left())}
	}
	return Verdict{Batch, fmt.Sprintf("micro-batch %d needs %s", f.Micro, f.Shortage())}
}

// medianSlope is the Theil–Sen estimator: the median of the slopes between all
// pairs of points, which a few outliers do not move.
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
