package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"headroom/memory"
	"headroom/recovery"
	"headroom/runs"
)

// lab holds what outlives the attempts of a test: the device, and the record of what was
// trained on it. A micro-batch needs base + perSample·micro bytes.
type lab struct {
	base, perSample memory.Bytes
	device          memory.Bytes
	foreign         func(step int) memory.Bytes    // memory held by other processes during a step
	allocFails      func(n int) bool               // whether allocation n fails, counted from 0 over all attempts
	before          func(l *lab, step int)         // called before every try of a step
	twist           func(s *runs.StepReport) error // changes the report of a step, or makes the step fail
	loading         func() error                   // makes the trainer's Load fail

	epoch    int64           // number of samples in an epoch
	samples  map[int][]int64 // ids of the samples in each of the steps that led to the present state
	allocs   int
	attempts int
	open     int
	trace    []string
}

func newLab() *lab {
	return &lab{base: 4 * memory.GiB, perSample: memory.GiB / 2, device: 24 * memory.GiB, epoch: 97, samples: map[int][]int64{}}
}

// toy is linear regression by gradient descent with momentum.
type toy struct {
	lab       *lab
	recompute bool
	state     toyState
}

type toyState struct {
	W, M  [4]float64
	Step  int
	First int64
}

func (l *lab) Open(context.Context) (Trainer, error) {
	l.attempts++
	l.open++
	if s := l.stats(1, 0); l.base > s.Available() {
		l.open--
		return nil, &memory.OutOfMemoryError{Requested: l.base, Stats: s}
	}
	return &toy{lab: l}, nil
}

func (l *lab) stats(step int, used memory.Bytes) memory.Stats {
	others := memory.Bytes(0)
	if l.foreign != nil {
		others = l.foreign(step)
	}
	return memory.Stats{Capacity: l.device, Free: l.device - others - used, Reserved: used, Allocated: used, Foreign: others, Peak: used}
}

// alloc allocates n bytes when used bytes are already in use.
func (l *lab) alloc(step, micro int, used, n memory.Bytes) error {
	l.allocs++
	s := l.stats(step, used)
	if used+n > s.Available() || l.allocFails != nil && l.allocFails(l.allocs-1) {
		s.Free = min(s.Free, n-1)
		return &memory.OutOfMemoryError{Requested: n, Stats: s, Phase: memory.PhaseForward, Micro: micro}
	}
	return nil
}

func (t *toy) cost(n int) memory.Bytes {
	if t.recompute {
		return t.lab.perSample * memory.Bytes(n) / 4
	}
	return t.lab.perSample * memory.Bytes(n)
}

func (t *toy) Step(ctx context.Context, p recovery.Plan) (runs.StepReport, error) {
	l, s := t.lab, t.state
	s.Step++
	if l.before != nil {
		l.before(l, s.Step)
	}
	if err := ctx.Err(); err != nil {
		return runs.StepReport{}, err
	}
	splits := p.Splits(0)
	report := runs.StepReport{Step: s.Step, First: s.First, LR: 0.01, Splits: splits, Tokens: p.Effective}
	var grad [4]float64
	var used []int64
	for _, n := range splits {
		err := l.alloc(s.Step, n, l.base, t.cost(n)/2)
		if err == nil {
			err = l.alloc(s.Step, n, l.base+t.cost(n)/2, t.cost(n)-t.cost(n)/2)
		}
		if err != nil {
			l.trace = append(l.trace, fmt.Sprintf("%d!", n))
			return runs.StepReport{}, fmt.Errorf("micro-batch of %d: %w", n, err)
		}
		for range n {
			id := l.id(s.First)
			report.Loss += s.gradient(&grad, id) / float64(p.Effective)
			used = append(used, id)
			s.First++
		}
		report.Samples += n
	}
	for i := range s.W {
		s.M[i] = 0.9*s.M[i] + grad[i]/float64(p.Effective)
		s.W[i] -= 0.01 * s.M[i]
		report.GradNorm += grad[i] * grad[i]
	}
	report.Memory = l.stats(s.Step, l.base)
	report.Memory.Peak = l.base + t.cost(splits[0])
	if l.twist != nil {
		if err := l.twist(&report); err != nil {
			return runs.StepReport{}, err
		}
	}
	t.state = s
	maps.DeleteFunc(l.samples, func(step int, _ []int64) bool { return step > s.Step })
	l.samples[s.Step] = used
	l.trace = append(l.trace, fmt.Sprint(splits[0]))
	return report, nil
}

// id returns the sample at a position of the stream. The order is different in every epoch.
func (l *lab) id(position int64) int64 {
	e, i := position/l.epoch, position%l.epoch
	return (i*(e%(l.epoch-1)+1) + 13*e) % l.epoch
}

func (s *toyState) gradient(grad *[4]float64, id int64) (loss float64) {
	x := [4]float64{1, float64(id%7) / 7, float64(id%11) / 11, float64(id%13) / 13}
	residual := -(2*x[1] - x[2] + 0.5)
	for i := range x {
		residual += s.W[i] * x[i]
	}
	for i := range x {
		grad[i] += residual * x[i]
	}
	return residual * residual
}

func (t *toy) Probe(_ context.Context, micro int) (memory.Stats, error) {
	t.lab.trace = append(t.lab.trace, fmt.Sprintf("?%d", micro))
	if err := t.lab.alloc(t.state.Step+1, micro, t.lab.base, t.cost(micro)); err != nil {
		return memory.Stats{}, err
	}
	return t.lab.stats(t.state.Step+1, t.lab.base+t.cost(micro)), nil
}

func (t *toy) EmptyCache() (memory.Bytes, error) {
	t.lab.trace = append(t.lab.trace, "empty")
	return memory.MiB, nil
}

func (t *toy) Stats() memory.Stats  { return t.lab.stats(t.state.Step+1, t.lab.base) }
func (t *toy) SetRecompute(on bool) { t.recompute = on }

func (t *toy) Save(w io.Writer) error { return json.NewEncoder(w).Encode(t.state) }

func (t *toy) Load(r io.Reader) error {
	if t.lab.loading != nil {
		if err := t.lab.loading(); err != nil {
			return err
		}
	}
	t.state = toyState{}
	return json.NewDecoder(r).Decode(&t.state)
}

func (t *toy) Close() error {
	t.lab.open--
	return nil
}

// journey is a run's folder together with the device and the options that its processes
// use.
type journey struct {
	t       testing.TB
	lab     *lab
	dir     string
	options options
	entries []runs.Entry
	slept   time.Duration
}

// options are all the options of a journey.
type options struct {
	SessionOptions
	RunOptions
}

// begun begins a session in f.
func (o options) begun(t testing.TB, f *runs.Folder) *Session {
	t.Helper()
	s, err := Begin(f, o.SessionOptions)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func newJourney(t testing.TB, plan recovery.Plan, steps int) *journey {
	j := &journey{t: t, lab: newLab(), dir: filepath.Join(t.TempDir(), "run")}
	j.options = options{
		SessionOptions{Steps: steps, Plan: plan, Policy: recovery.Policy{MinMicro: 1, Relaunches: 2, Waits: 2},
			OnEntry: func(e runs.Entry) { j.entries = append(j.entries, e) }},
		RunOptions{Keep: 2, Open: j.lab.Open,
			Sleep: func(ctx context.Context, d time.Duration) error {
				j.slept += d
				return ctx.Err()
			}},
	}
	return j
}

// run opens the folder, calls [Run], and closes the folder.
func (j *journey) run(ctx context.Context) (Result, error) {
	j.t.Helper()
	return j.runOn(ctx, fast{})
}

func (j *journey) runOn(ctx context.Context, d runs.Disk) (Result, error) {
	j.t.Helper()
	f, err := runs.OpenOn(j.dir, d)
	if err != nil {
		return Result{}, err
	}
	result, err := Run(ctx, j.options.begun(j.t, f), j.options.RunOptions)
	if d == (fast{}) {
		if err := f.Close(); err != nil {
			j.t.Fatal(err)
		}
	} else {
		_ = f.Close() // a broken disk may refuse, but the lock is released all the same
	}
	if j.lab.open != 0 {
		j.t.Fatalf("%d trainers were left open", j.lab.open)
	}
	return result, err
}

func (j *journey) mustRun() Result {
	j.t.Helper()
	result, err := j.run(context.Background())
	if err != nil {
		j.t.Fatal(err)
	}
	return result
}

func (j *journey) kinds() string {
	var kinds []string
	for _, e := range j.entries {
		kinds = append(kinds, string(e.Kind))
	}
	return strings.Join(kinds, ", ")
}

// account checks that metrics and trainer agree on every step, that each step has the
// effective batch, and that every epoch contains each sample once.
func (j *journey) account(steps int) {
	j.t.Helper()
	metrics, err := runs.ReadMetrics(j.dir)
	if err != nil {
		j.t.Fatal(err)
	}
	if len(metrics) != steps || len(j.lab.samples) != steps {
		j.t.Fatalf("metrics tell of %d steps, the trainer of %d, want %d", len(metrics), len(j.lab.samples), steps)
	}
	var stream []int64
	for i, s := range metrics {
		if s.Step != i+1 || s.Samples != j.options.Plan.Effective || s.First != int64(len(stream)) || len(j.lab.samples[i+1]) != s.Samples {
			j.t.Fatalf("line %d of the metrics: step %d, %d samples from %d; the trainer used %d", i+1, s.Step, s.Samples, s.First, len(j.lab.samples[i+1]))
		}
		stream = append(stream, j.lab.samples[i+1]...)
	}
	for epoch := range slices.Chunk(stream, int(j.lab.epoch)) {
		sorted := slices.Sorted(slices.Values(epoch))
		if len(slices.Compact(sorted)) != len(epoch) {
			j.t.Fatalf("an epoch has a sample twice: %v", epoch)
		}
	}
}
