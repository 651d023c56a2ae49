package recovery

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"headroom/memory"
	"headroom/search"
)

// world is a device and a model, reduced to the numbers that Decide depends on.
type world struct {
	capacity memory.Bytes
	base     memory.Bytes                // held between steps
	sample   memory.Bytes                // needed per sample of a micro-batch
	foreign  func(step int) memory.Bytes // held by other processes; nil means nothing
	spike    func(step int) float64      // factor by which sample is multiplied, 1 for an ordinary step; nil means always 1
	edge     func(step int, n int) bool  // further failures that more free memory would not cure; nil means none
	leak     memory.Bytes                // how much more is held after each step, until a relaunch
	request  func(n int) memory.Bytes    // what a failing step asks for, if not all that it needs; nil means that
	holds    func(n int) memory.Bytes    // what it has allocated by then
}

func (w world) stats(step int) memory.Stats {
	s := memory.Stats{Capacity: w.capacity, Reserved: w.base, Allocated: w.base}
	if w.foreign != nil {
		s.Foreign = w.foreign(step)
	}
	s.Free = max(0, s.Capacity-s.Reserved-s.Foreign)
	return s
}

func (w world) need(step, n int) memory.Bytes {
	factor := 1.0
	if w.spike != nil && step > 0 {
		factor = w.spike(step)
	}
	return w.base + memory.Bytes(factor*float64(n)*float64(w.sample))
}

// run calls Decide for one step after another and records the trajectory. The trajectory
// holds the micro-batch of every try, followed by "!" if the try failed. In between are
// the remedies that cannot be seen from the micro-batches.
type run struct {
	world
	policy  Policy
	history History
	trace   []string
	reasons []string
	like    []memory.Bytes
	effect  []int // samples of every finished step
	stopped *Decision

	boundary []memory.Bytes // allocated after each step of the attempt
}

// relaunch starts an attempt with clean memory.
func (r *run) relaunch() {
	r.base -= r.leak * memory.Bytes(len(r.boundary))
	r.like, r.boundary = nil, nil
}

func (r *run) note(d Decision) {
	r.reasons = append(r.reasons, d.Reason)
	switch d.Remedy {
	case EmptyCache, Recompute, Wait, Relaunch, Stop, Search, Grow:
		r.trace = append(r.trace, string(d.Remedy))
	}
	if d.Remedy == Recompute {
		r.sample /= 2
	}
}

func (r *run) searchUpTo(step, limit int) {
	w := r.world
	available := w.stats(step).Available()
	fits, recommended := 0, 0
	for n := r.policy.Least(); n <= limit; n++ {
		if w.need(0, n) <= available {
			fits = n
		}
		if float64(w.need(0, n)) <= r.policy.budget(available) {
			recommended = n
		}
	}
	s := Searched{Stats: w.stats(step), Result: search.Result{
		Fits: fits, Recommended: recommended,
		Line: search.Line{Base: float64(w.base), PerSample: float64(w.sample)},
	}}
	if fits == 0 {
		s.Result.Line = search.Line{}
		s.Result.Probes = []search.Probe{{N: 1, Peak: w.need(0, 1)}}
	}
	e := Event{Search: &s}
	d := Decide(r.policy, r.history, e)
	r.note(d)
	r.history = r.history.Apply(e, d)
	if d.Remedy == Stop {
		r.stopped = &d
	}
}

func (r *run) failure(step, n int) *memory.OutOfMemoryError {
	s := r.stats(step)
	available := s.Available()
	if r.request != nil && r.holds(n)+r.request(n) > available {
		s.Allocated, s.Reserved = r.holds(n), r.holds(n)
		s.Free = available - s.Reserved
		return &memory.OutOfMemoryError{Requested: r.request(n), Stats: s, Phase: memory.PhaseForward, Micro: n}
	}
	if need := r.need(step, n); need > available {
		s.Allocated = available - available/100
		s.Reserved, s.Free = available, 0
		return &memory.OutOfMemoryError{Requested: need - s.Allocated, Stats: s, Phase: memory.PhaseForward, Micro: n}
	}
	if r.edge != nil && r.edge(step, n) { // fragmentation: enough memory is free, but no piece is large enough
		s.Reserved, s.Free, s.LargestFree = available, 0, memory.MiB
		return &memory.OutOfMemoryError{Requested: 2 * memory.MiB, Stats: s, Phase: memory.PhaseBackward, Micro: n}
	}
	return nil
}

// fatal is what *testing.T and *rapid.T have in common.
type fatal interface {
	Fatalf(format string, args ...any)
}

// step runs one optimizer step, or stops the run. It fails the test if Decide chooses
// remedies without end.
func (r *run) step(t fatal, step int) {
	for tries := 0; ; tries++ {
		if tries > 60 {
			t.Fatalf("step %d never ends: %v", step, r.trace)
		}
		if r.history.Plan.Micro == 0 {
			r.searchUpTo(step, r.history.Plan.Share(0))
			if r.stopped != nil {
				return
			}
			continue
		}
		plan := r.history.Running()
		oom := r.failure(step, plan.Largest())
		if oom == nil {
			r.trace = append(r.trace, fmt.Sprint(plan.Largest()))
			r.finish(step, plan)
			return
		}
		r.trace = append(r.trace, fmt.Sprintf("%d!", plan.Largest()))
		r.recover(step, oom)
		if r.stopped != nil {
			return
		}
	}
}

func (r *run) recover(step int, oom *memory.OutOfMemoryError) {
	evidence := &memory.Evidence{Failure: *oom, Baseline: r.stats(0), Boundary: r.boundary, MinMicro: r.policy.MinMicro, Like: len(r.like)}
	if len(r.like) > 0 {
		evidence.Typical = r.like[0]
	}
	e := Event{OOM: evidence}
	d := Decide(r.policy, r.history, e)
	r.note(d)
	r.history = r.history.Apply(e, d)
	switch d.Remedy {
	case Stop:
		r.stopped = &d
	case Search:
		r.searchUpTo(step, d.Plan.Micro)
	case Relaunch:
		r.relaunch()
	}
}

func (r *run) finish(step int, plan Plan) {
	samples := 0
	for _, n := range plan.Splits(0) {
		samples += n
	}
	r.effect = append(r.effect, samples)
	peak := r.need(step, plan.Largest())
	r.base += r.leak
	r.boundary = append(r.boundary, r.base)
	if plan == r.history.Plan {
		r.like = append(r.like, peak)
	}
	s := r.stats(step)
	s.Peak = peak
	e := Event{Step: &Progress{Step: step, Memory: s}}
	d := Decide(r.policy, r.history, e)
	r.note(d)
	next := r.history.Apply(e, d)
	if next.Plan != r.history.Plan {
		r.like = nil
	}
	r.history = next
}

// command is a body that can only be started and ended, but that counts its steps.
var command = Able{CountSteps: true}

// native is a body that can do everything except change the evaluation batch.
var native = Able{EmptyCache: true, CutStep: true, Probe: true, Recompute: true, CountSteps: true}

func drive(t fatal, w world, p Policy, plan Plan, steps int) *run {
	if p.Able == (Able{}) {
		p.Able = native
	}
	r := &run{world: w, policy: p, history: NewHistory(plan)}
	for step := 1; step <= steps && r.stopped == nil; step++ {
		r.step(t, step)
	}
	return r
}

// shorten writes n equal entries in a row as one, such as "27×3".
func shorten(trace []string) string {
	var out []string
	for i := 0; i < len(trace); {
		n := 1
		for i+n < len(trace) && trace[i+n] == trace[i] {
			n++
		}
		text := trace[i]
		if n > 1 {
			text = fmt.Sprintf("%s×%d", text, n)
		}
		out = append(out, text)
		i += n
	}
	return strings.Join(out, " ")
}

func between(from, to int, taken memory.Bytes) func(int) memory.Bytes {
	return func(step int) memory.Bytes {
		if step >= from && step < to {
			return taken
		}
		return 0
	}
}

func TestTrajectories(t *testing.T) {
	const gib = memory.GiB
	usual := Policy{Headroom: 0.08, GrowAfter: 3}
	for _, c := range []struct {
		name   string
		world  world
		policy Policy
		plan   Plan
		steps  int
		want   string
		cause  memory.Cause // cause of the stop, if the run ends with one
	}{
		{
			name:  "what fits is left alone",
			world: world{capacity: 24 * gib, base: 2 * gib, sample: gib / 2}, policy: usual,
			plan: Plan{Effective: 64, World: 1, Micro: 32}, steps: 3,
			want: "32×3",
		},
		{
			name:  "too large from the start: cache, retry, search, accumulation",
			world: world{capacity: 24 * gib, base: 2 * gib, sample: gib / 2}, policy: usual,
			plan: Plan{Effective: 64, World: 1, Micro: 64}, steps: 4,
			want: "64! empty cache 64! search 32×4",
		},
		{
			name:  "auto searches before the first step",
			world: world{capacity: 24 * gib, base: 2 * gib, sample: gib / 2}, policy: usual,
			plan: Plan{Effective: 100, World: 1}, steps: 2,
			want: "34×2",
		},
		{
			name:  "another process comes and goes",
			world: world{capacity: 24 * gib, base: 2 * gib, sample: gib / 2, foreign: between(3, 8, 12*gib)}, policy: usual,
			plan: Plan{Effective: 40, World: 1, Micro: 40}, steps: 12,
			want: "40×2 40! empty cache 40! search 14×6 grow 40×4",
		},
		{
			name:  "one long step is cut for itself alone",
			world: world{capacity: 24 * gib, base: 2 * gib, sample: gib / 2, spike: at(3, 5)}, policy: Policy{Headroom: 0.08},
			plan: Plan{Effective: 32, World: 1, Micro: 32}, steps: 6,
			want: "32×4 32! empty cache 32! 16! 8 32",
		},
		{
			name:  "an outlier that comes back is none",
			world: world{capacity: 24 * gib, base: 2 * gib, sample: gib / 2, spike: every(4, 2)}, policy: Policy{Headroom: 0.08},
			plan: Plan{Effective: 32, World: 1, Micro: 32}, steps: 20,
			want: "32×3 32! empty cache 32! 16 32×3 32! empty cache 32! 16 32×3 32! empty cache 32! 16 32×3 32! empty cache 32! 16×5",
		},
		{
			name:  "recompute when one sample is too much, then search again",
			world: world{capacity: 10 * gib, base: 2 * gib, sample: 12 * gib}, policy: Policy{Recompute: true},
			plan: Plan{Effective: 4, World: 1, Micro: 4}, steps: 2,
			want: "4! empty cache 4! search recompute 4! search 1×2",
		},
		{
			name:  "the model alone is too large",
			world: world{capacity: 10 * gib, base: 11 * gib, sample: gib}, policy: usual,
			plan: Plan{Effective: 4, World: 1, Micro: 4}, steps: 2,
			want: "4! empty cache 4! search stop", cause: memory.Model,
		},
		{
			name:  "auto with a model that is too large",
			world: world{capacity: 10 * gib, base: 11 * gib, sample: gib}, policy: usual,
			plan: Plan{Effective: 4, World: 1}, steps: 2,
			want: "stop", cause: memory.Model,
		},
		{
			name:  "others leave no room for one sample: wait, then stop",
			world: world{capacity: 10 * gib, base: 2 * gib, sample: gib, foreign: between(2, 9, 8*gib)}, policy: Policy{Waits: 2},
			plan: Plan{Effective: 4, World: 1, Micro: 4}, steps: 9,
			want: "4 4! empty cache 4! search wait 4! search wait 4! search stop", cause: memory.Foreign,
		},
		{
			name:   "fragmentation: cut the step, then relaunch, then smaller for good",
			world:  world{capacity: 24 * gib, base: 2 * gib, sample: gib / 2, edge: func(step, n int) bool { return n > 16 && step%2 == 0 }},
			policy: Policy{Relaunches: 3},
			plan:   Plan{Effective: 32, World: 1, Micro: 32}, steps: 18,
			want: "32 32! empty cache 32! 16 32 32! empty cache 32! 16 32 32! empty cache 32! 16 32 32! empty cache 32! relaunch 32! 16×11",
		},
		{
			name:   "growing back too early falls back at once and waits twice as long",
			world:  world{capacity: 24 * gib, base: 2 * gib, sample: gib / 2, foreign: flicker},
			policy: Policy{Headroom: 0.08, GrowAfter: 2},
			plan:   Plan{Effective: 40, World: 1, Micro: 40}, steps: 16,
			want: "40×2 40! empty cache 40! search 14×2 grow 40! 14×5 grow 40×7",
		},
		{
			name:  "a uniform plan takes divisors only",
			world: world{capacity: 24 * gib, base: 2 * gib, sample: gib / 2}, policy: usual,
			plan: Plan{Effective: 60, World: 1, Micro: 60, Uniform: true}, steps: 2,
			want: "60! empty cache 60! search 30×2",
		},
		{
			name:  "a leak: relaunch while allowed, then smaller",
			world: world{capacity: 24 * gib, base: 2 * gib, sample: gib / 2, leak: gib / 4}, policy: Policy{Relaunches: 1},
			plan: Plan{Effective: 32, World: 1, Micro: 32}, steps: 60,
			want: "32×25 32! empty cache 32! relaunch 32×25 32! empty cache 32! search 16×10",
		},
		{
			name:  "outliers are forgotten after a hundred quiet steps",
			world: world{capacity: 24 * gib, base: 2 * gib, sample: gib / 2, spike: only(4, 6, 8, 120)}, policy: Policy{Headroom: 0.08},
			plan: Plan{Effective: 32, World: 1, Micro: 32}, steps: 121,
			want: "32×3 32! empty cache 32! 16 32 32! empty cache 32! 16 32 32! empty cache 32! 16 32×111 32! empty cache 32! 16 32",
		},
		{
			name:  "a cut step that has to be cut again is one outlier",
			world: world{capacity: 24 * gib, base: 2 * gib, sample: gib / 2, spike: every(4, 8)}, policy: Policy{Headroom: 0.08},
			plan: Plan{Effective: 32, World: 1, Micro: 32}, steps: 14,
			want: "32×3 32! empty cache 32! 16! 8! 4 32×3 32! empty cache 32! 16! 8! 4 32×3 32! empty cache 32! 16! 8! 4 32×2",
		},
		{
			name:  "a lasting cut for a spike needs no more memory to grow back",
			world: world{capacity: 24 * gib, base: 2 * gib, sample: gib / 2, spike: only(4, 6, 8, 10)}, policy: Policy{Headroom: 0.08, GrowAfter: 3},
			plan: Plan{Effective: 32, World: 1, Micro: 32}, steps: 16,
			want: "32×3 32! empty cache 32! 16 32 32! empty cache 32! 16 32 32! empty cache 32! 16 32 32! empty cache 32! 16×3 grow 32×4",
		},
		{
			name:  "a size computed from the line that fails is searched for, not computed again",
			world: world{capacity: 24 * gib, base: 2 * gib, sample: gib / 2, foreign: between(3, 99, 6*gib), edge: func(step, n int) bool { return step > 3 && n > 20 }}, policy: Policy{Headroom: 0.08},
			plan: Plan{Effective: 64, World: 1}, steps: 8,
			want: "32×3 32! empty cache 32! 22! search 16×5",
		},
		{
			name: "no growth that saves no micro-batch",
			world: world{capacity: 24 * gib, base: 2 * gib, sample: gib / 2, foreign: func(step int) memory.Bytes {
				return between(2, 5, 6*gib)(step) + between(5, 8, 9*gib/2)(step)
			}},
			policy: Policy{GrowAfter: 1},
			plan:   Plan{Effective: 100, World: 1, Micro: 49}, steps: 12,
			want: "34 34! empty cache 34! search 25×4 grow 34×7",
		},
		{
			name:  "a body that can only be started and ended: half, and half again",
			world: world{capacity: 24 * gib, base: 2 * gib, sample: gib / 2}, policy: Policy{Able: command},
			plan: Plan{Effective: 200, World: 1, Micro: 200}, steps: 2,
			want: "200! 100! 50! 25×2",
		},
		{
			name:  "such a body with one knob takes divisors, and none below the smallest allowed",
			world: world{capacity: 24 * gib, base: 2 * gib, sample: gib}, policy: Policy{Able: command, MinMicro: 3},
			plan: Plan{Effective: 60, World: 1, Micro: 60, Uniform: true}, steps: 2,
			want: "60! 30! 15×2",
		},
		{
			name:  "such a body can cut no step: an outlier makes the plan smaller",
			world: world{capacity: 24 * gib, base: 2 * gib, sample: gib / 2, spike: only(4)}, policy: Policy{Able: command},
			plan: Plan{Effective: 32, World: 1, Micro: 32}, steps: 6,
			want: "32×3 32! 16×3",
		},
		{
			name:   "a request that no micro-batch changes: three tries, and no more",
			world:  world{capacity: 24 * gib, base: 2 * gib, request: func(int) memory.Bytes { return 23 * gib }, holds: func(n int) memory.Bytes { return 2*gib + memory.Bytes(n)*memory.KiB }},
			policy: Policy{Able: command},
			plan:   Plan{Effective: 65536, World: 1, Micro: 65536}, steps: 2,
			want: "65536! 32768! 16384! stop", cause: memory.Batch,
		},
		{
			name:   "the same request, and less allocated each time: on",
			world:  world{capacity: 24 * gib, base: 2 * gib, request: func(int) memory.Bytes { return 2 * gib }, holds: func(n int) memory.Bytes { return 2*gib + memory.Bytes(n)*gib }},
			policy: Policy{Able: command},
			plan:   Plan{Effective: 256, World: 1, Micro: 256}, steps: 2,
			want: "256! 128! 64! 32! 16×2",
		},
		{
			name:   "the same request twice, then a smaller one: on",
			world:  world{capacity: 24 * gib, base: 2 * gib, request: func(n int) memory.Bytes { return min(gib, memory.Bytes(n)*gib/32) }, holds: func(n int) memory.Bytes { return 24*gib - min(gib, memory.Bytes(n)*gib/32) + memory.MiB }},
			policy: Policy{Able: command},
			plan:   Plan{Effective: 64, World: 1, Micro: 64}, steps: 1,
			want: "64! 32! 16! 8! 4! 2! 1! stop", cause: memory.Model,
		},
		{
			name:   "a body that can cut a step tries smaller ones at once, and all of them",
			world:  world{capacity: 24 * gib, base: 2 * gib, request: func(int) memory.Bytes { return 23 * gib }, holds: func(int) memory.Bytes { return 2 * gib }},
			policy: Policy{Able: Able{CutStep: true, CountSteps: true}},
			plan:   Plan{Effective: 32, World: 1, Micro: 32}, steps: 1,
			want: "32! 16! 8! 4! 2! 1! stop", cause: memory.Model,
		},
		{
			name:  "such a body cannot recompute, though it is allowed",
			world: world{capacity: 10 * gib, base: 2 * gib, sample: 12 * gib}, policy: Policy{Able: command, Recompute: true},
			plan: Plan{Effective: 2, World: 1, Micro: 2}, steps: 2,
			want: "2! 1! stop", cause: memory.Model,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := drive(t, c.world, c.policy, c.plan, c.steps)
			t.Log(strings.Join(r.reasons, "\n"))
			if got := shorten(r.trace); got != c.want {
				t.Errorf("trajectory\n got %s\nwant %s", got, c.want)
			}
			checkStop(t, r, c.cause)
		})
	}
}

func at(factor float64, step int) func(int) float64 {
	return func(s int) float64 {
		if s == step {
			return factor
		}
		return 1
	}
}

func only(steps ...int) func(int) float64 {
	return func(s int) float64 {
		if slices.Contains(steps, s) {
			return 2
		}
		return 1
	}
}

func every(n int, factor float64) func(int) float64 {
	return func(s int) float64 {
		if s%n == 0 {
			return factor
		}
		return 1
	}
}

// flicker returns the memory that another process holds during a step. The process goes
// away just long enough for the run to try to grow back.
func flicker(step int) memory.Bytes {
	if step >= 3 && step != 4 && step < 9 {
		return 12 * memory.GiB
	}
	return 0
}

func checkStop(t *testing.T, r *run, cause memory.Cause) {
	t.Helper()
	switch {
	case cause == "" && r.stopped != nil:
		t.Errorf("stopped: %s", r.stopped.Reason)
	case cause != "" && r.stopped == nil:
		t.Error("did not stop")
	case cause != "" && r.stopped.Verdict.Cause != cause:
		t.Errorf("verdict %s, want %s", r.stopped.Verdict, cause)
	}
}

// TestDecideEnds runs random worlds under random policies. Whatever happens, every step
// must be finished or the run must stop, every finished step must have exactly the
// effective batch, and no micro-batch may exceed what was asked for. No run may stop
// while the smallest micro-batch would fit.
func TestDecideEnds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		gib := rapid.Int64Range(0, 24)
		draw := func(name string) memory.Bytes { return memory.Bytes(gib.Draw(t, name)) * memory.GiB }
		taken := rapid.SliceOfN(gib, 12, 12).Draw(t, "foreign by step")
		broken := rapid.SliceOfN(rapid.IntRange(1, 100), 12, 12).Draw(t, "in pieces above")
		factors := rapid.SliceOfN(rapid.Float64Range(0.5, 3), 12, 12).Draw(t, "spike by step")
		w := world{
			capacity: 24 * memory.GiB, base: draw("base"), sample: draw("sample")/8 + 1,
			foreign: func(step int) memory.Bytes { return memory.Bytes(taken[step%12]) * memory.GiB },
			spike:   func(step int) float64 { return factors[step%12] },
			edge:    func(step, n int) bool { return n > broken[step%12] },
		}
		effective := rapid.IntRange(1, 128).Draw(t, "effective")
		asked := rapid.IntRange(0, effective).Draw(t, "micro")
		p := Policy{
			MinMicro:  rapid.IntRange(0, max(1, asked)).Draw(t, "min"),
			Headroom:  rapid.Float64Range(0, 0.5).Draw(t, "headroom"),
			Recompute: rapid.Bool().Draw(t, "recompute"), Relaunches: rapid.IntRange(0, 2).Draw(t, "relaunches"),
			Waits: rapid.IntRange(0, 3).Draw(t, "waits"), GrowAfter: rapid.IntRange(0, 3).Draw(t, "grow"), Able: native,
		}
		plan := Plan{Effective: effective, World: 1, Micro: asked, Uniform: rapid.Bool().Draw(t, "uniform")}
		smallest := plan.within(p.Least(), p.Least())
		if asked > 0 && plan.Largest() < p.Least() { // package configs refuses this
			p.MinMicro, smallest = 1, 1
		}
		r := &run{world: w, policy: p, history: NewHistory(plan)}
		for step := 1; step <= 24 && r.stopped == nil; step++ {
			r.step(t, step)
			if r.history.Plan.Micro > r.history.asked {
				t.Fatalf("micro-batch %d exceeds the %d asked for", r.history.Plan.Micro, r.history.asked)
			}
			if r.stopped == nil && plan.Uniform && r.history.Plan.Largest() < p.Least() {
				t.Fatalf("micro-batch %d is smaller than the %d allowed (%v)", r.history.Plan.Largest(), p.Least(), r.trace)
			}
			if r.stopped != nil && smallest > 0 && r.need(step, smallest) <= r.stats(step).Available() && !w.edge(step, smallest) && r.need(0, smallest) <= r.stats(step).Available() {
				t.Fatalf("stopped although micro-batch %d fits: %s (%v)", smallest, r.stopped.Reason, r.trace)
			}
		}
		for i, samples := range r.effect {
			if samples != effective {
				t.Fatalf("step %d took %d samples, want %d", i+1, samples, effective)
			}
		}
	})
}

// TestStopSaysWhy checks the causes and hints given for two failures that stop the run
// at once: one of host memory if Policy.Host is empty, and one whose cause is unknown.
func TestStopSaysWhy(t *testing.T) {
	for _, c := range []struct {
		evidence memory.Evidence
		cause    memory.Cause
		hint     string
	}{
		{memory.Evidence{Host: true, Failure: memory.OutOfMemoryError{Requested: memory.GiB}}, memory.Host, "workers"},
		{memory.Evidence{Failure: memory.OutOfMemoryError{Micro: 8}}, memory.Unknown, "evidence"},
	} {
		h := NewHistory(Plan{Effective: 64, World: 1, Micro: 8})
		d := Decide(Policy{Recompute: true, Relaunches: 3, Able: native}, h, Event{OOM: &c.evidence})
		if d.Remedy != Stop || d.Verdict.Cause != c.cause || !strings.Contains(d.Hint, c.hint) || d.Reason != d.Brief+": "+d.Verdict.Why {
			t.Errorf("%s: got %+v", c.cause, d)
		}
	}
}

// TestLeft checks that a process that was ended just after a checkpoint continues with
// the plan that it had, and that this does not count as one of the policy's relaunches.
func TestLeft(t *testing.T) {
	h := NewHistory(Plan{Effective: 64, World: 1, Micro: 16})
	for range 5 {
		e := Event{Left: &Left{Why: "it leaks", From: 40}}
		d := Decide(Policy{}, h, e)
		if d.Remedy != Relaunch || d.Plan != h.Plan || d.Reason != "continue in a new process from step 40: it leaks" {
			t.Errorf("%+v", d)
		}
		if next := h.Apply(e, d); !reflect.DeepEqual(next, h) {
			t.Errorf("%+v became %+v", h, next)
		}
	}
}

// TestKnownLeakIsNeverCut checks that no batch is made smaller for a leak if it is known what leaks.
func TestKnownLeakIsNeverCut(t *testing.T) {
	held := memory.Holder{Kind: "collected", Name: "seen", Bytes: 8 * memory.GiB, Cure: "empty `seen`"}
	leak := Event{OOM: &memory.Evidence{Holder: &held, Failure: memory.OutOfMemoryError{Requested: memory.GiB, Phase: memory.PhaseForward, Micro: 16,
		Stats: memory.Stats{Capacity: 24 * memory.GiB, Reserved: 24 * memory.GiB, Allocated: 24 * memory.GiB}}}}
	h := NewHistory(Plan{Effective: 64, World: 1, Micro: 16})
	if d := Decide(Policy{Relaunches: 1}, h, leak); d.Remedy != Relaunch {
		t.Errorf("%+v", d)
	}
	if d := Decide(Policy{}, h, leak); d.Remedy != Stop || d.Hint != held.Cure {
		t.Errorf("%+v", d)
	}
	leak.OOM.Holder = nil
	if d := Decide(Policy{}, h, leak); d.Remedy != Shrink {
		t.Errorf("without it: %+v", d)
	}
}

// TestLeakingCommandIsRelaunched checks that a command that leaks is started again
// after each newer checkpoint. Without a newer one, it is started again no more often
// than the policy allows.
func TestLeakingCommandIsRelaunched(t *testing.T) {
	var held []memory.Bytes
	for i := range memory.Bytes(memory.LeakWindow) {
		held = append(held, memory.GiB+i*memory.GiB/10)
	}
	leak := Event{OOM: &memory.Evidence{Boundary: held, Failure: memory.OutOfMemoryError{Requested: memory.GiB, Phase: memory.PhaseForward, Micro: 16,
		Stats: memory.Stats{Capacity: 24 * memory.GiB, Reserved: 24 * memory.GiB, Allocated: 24 * memory.GiB}}}}
	for _, c := range []struct {
		name         string
		policy       Policy
		progress     bool
		want, second Remedy
	}{
		{"with a newer checkpoint", Policy{Relaunches: 1}, true, Relaunch, Relaunch},
		{"without", Policy{Relaunches: 1}, false, Relaunch, Shrink},
		{"not allowed", Policy{}, true, Shrink, Shrink},
		{"steps are counted, so it is once in all", Policy{Relaunches: 1, Able: Able{CountSteps: true}}, true, Relaunch, Shrink},
	} {
		h := NewHistory(Plan{Effective: 64, World: 1, Micro: 16})
		first := Decide(c.policy, h, leak)
		h = h.Apply(leak, first)
		if c.progress {
			made := Event{Step: &Progress{Step: 40}}
			h = h.Apply(made, Decide(c.policy, h, made))
		}
		if second := Decide(c.policy, h, leak); first.Remedy != c.want || second.Remedy != c.second {
			t.Errorf("%s: %s, then %s; want %s, then %s", c.name, first.Remedy, second.Remedy, c.want, c.second)
		}
	}
}
