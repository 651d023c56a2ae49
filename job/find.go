package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"

	"headroom/harness"
	"headroom/memory"
	"headroom/recovery"
	"headroom/search"
	"headroom/worker"
	"headroom/wrap"
	"headroom/wrap/command"
)

const (
	// sizesUsual is how many numbers of rows are tried in one process: more only until the largest that fits is known
	// to within wide, or sizesMost have been tried.
	sizesUsual, sizesMost = 5, 12
	wide                  = 0.02
	// rowsMost is the largest number of rows that is tried.
	rowsMost = 1 << 20
	// nearlyFastest is the share of the best measured speed that a recommended micro-batch may give up.
	nearlyFastest = 0.03
)

// FoundRows is what [Find] has found: how many rows a command's training step can be run on.
type FoundRows struct {
	Rows      int    `json:"rows"`            // in a micro-batch of the command's own
	Effective int    `json:"effective"`       // rows of one of its optimizer steps, of all ranks
	World     int    `json:"world,omitempty"` // ranks, if there are several: all amounts are those of the one that has least room
	Uncut     string `json:"uncut,omitempty"` // why a step cannot be made in pieces
	Device    string `json:"device"`          // "cpu" or "gpu"

	Largest   int            `json:"largest"`            // the largest number of rows that was run
	Fails     int            `json:"fails,omitempty"`    // the smallest number of rows that did not fit; 0 if none failed
	Foreseen  bool           `json:"foreseen,omitempty"` // the next larger number was not tried: by the line it does not fit
	Line      search.Line    `json:"line"`               // the peak of the forward and backward pass by rows
	Available memory.Bytes   `json:"available"`          // memory that the process can hold
	Weights   memory.Bytes   `json:"weights"`
	Gradients memory.Bytes   `json:"gradients"`
	States    memory.Bytes   `json:"states"`   // of the optimizers
	Together  memory.Bytes   `json:"together"` // of the batch and of those of its results that the script holds, in however many pieces the step is made
	Tried     []worker.Trial `json:"tried"`    // in the order in which the sizes were tried
	Batches   worker.Batches `json:"batches"`  // which rows are those that were tried

	Recommended recovery.Plan `json:"recommended"`
	Reason      string        `json:"reason"`

	Evaluation *EvaluationRows `json:"evaluation,omitempty"` // nil if it is not known
	Levers     []Lever         `json:"levers,omitempty"`     // what would make room for more rows

	Elsewhere []RowsElsewhere `json:"elsewhere,omitempty"` // with the memories that were asked for, in that order
}

// FindRowsOptions are the options of [FindRows].
type FindRowsOptions struct {
	Headroom float64 // share of the memory that the recommended number of rows leaves unused
	Look     int     // how many batches of a loader are looked at, of which the largest is tried on; 0 takes them as they come
	Version  string  // headroom's
	// Within are memories for which the answer is wanted too. If the device has more than the largest of them, that one takes its place.
	Within     []memory.Card
	Evaluation bool               // find how many rows an evaluation's batch can have, too
	OnTried    func(worker.Trial) // may be nil
	Output     *os.File           // where what the command prints goes; nil is stderr
}

// FindRows starts a command, lets it make its first optimizer step, and finds in its process how many rows the step
// can be run on. Then it ends the command. why says why nothing was found; exit is how the command ended, if it did so by itself.
// The error is a *[command.StartError] if the command cannot be started, [harness.ErrInterrupted], [ErrOnHost], or one of the trials'.
func FindRows(ctx context.Context, to wrap.Reporter, line command.Line, o FindRowsOptions) (found *FoundRows, why string, exit command.Exit, err error) {
	// A step that needed the host's memory must not count as one that fits.
	attempt, err := worker.Begin(worker.Options{Mode: worker.Find, Journal: nobody{}, Version: o.Version, Spill: new(memory.Bytes), Look: look})
	if err != nil {
		return nil, "", exit, err
	}
	within := line
	within.Env = append(attempt.Env(line.Env), "HEADROOM_TRIAL=1")
	if o.Look > 0 {
		within.Env = append(within.Env, fmt.Sprintf("HEADROOM_LOOK=%d", o.Look))
	}
	if _, set := line.Getenv("WANDB_MODE"); !set {
		within.Env = append(within.Env, "WANDB_MODE=disabled") // a trial is no experiment
	}
	enough := make(chan struct{})
	trying, stop := context.WithCancel(ctx)
	var wrong error
	go func() {
		defer close(enough)
		found, wrong = o.sought(trying, attempt)
	}()
	exit, err = begunAndEnded(ctx, to, within, cmp.Or(o.Output, os.Stderr), enough)
	stop()
	<-enough
	seen, ended := attempt.End()
	if ended != nil {
		to.Warn("the worker's folder is left behind: %v", ended)
	}
	switch {
	case found != nil || wrong != nil && !errors.Is(wrong, errMissing):
		return found, "", exit, errors.Join(err, wrong)
	case err != nil:
		return nil, "", exit, err
	case wrong != nil:
		return nil, wrong.Error(), command.Exit{}, nil
	case seen.Unchecked != "":
		return nil, seen.Unchecked, command.Exit{}, nil
	case exit.Stopped:
		return nil, "", exit, harness.ErrInterrupted
	}
	return nil, unfound(line, seen, exit), exit, nil
}

// sought returns what is found in the processes of an attempt. It returns nil if they cannot make trials, or ctx is cancelled before.
func (o FindRowsOptions) sought(ctx context.Context, attempt *worker.Attempt) (*FoundRows, error) {
	select {
	case first := <-attempt.Trials():
		all, err := gathered(ctx, first, attempt.Trials(), attempt.Checked(), ranksWithin)
		if err != nil || all == nil {
			return nil, err
		}
		seeker := &rowSeeker{ctx: ctx, trials: all.smallest(), within: o.Within, try: all.try, evaluate: all.evaluate, report: o.OnTried, evaluates: o.Evaluation}
		return seeker.seek(o.Headroom)
	case <-attempt.Checked():
	case <-ctx.Done():
	}
	return nil, nil
}

// unfound says why nothing was found in a command that has ended by itself.
func unfound(line command.Line, seen worker.Ended, exit command.Exit) string {
	switch {
	case seen.OOM != nil && seen.Why != "":
		return "memory ran out in the first step, which cannot be run in pieces: " + seen.Why
	case seen.Attached:
		return fmt.Sprintf("the command exited with status %d before its optimizer took a step", exit.Code)
	}
	return fmt.Sprintf("the command exited with status %d, and the worker was not attached: %s", exit.Code, unattached(line, seen))
}

// errEnough ends a search: as many sizes were tried as may be.
var errEnough = errors.New("enough sizes were tried")

// rowSeeker is a search among numbers of rows.
type rowSeeker struct {
	ctx       context.Context
	trials    *worker.Trials
	within    []memory.Card
	try       func(ctx context.Context, rows int, most memory.Bytes) (worker.Trial, error)
	evaluate  func(ctx context.Context, rows int, most memory.Bytes) (worker.Trial, error) // as try, without gradients
	evaluates bool
	most      memory.Bytes // that the process may hold in a trial; 0 is as much as there is
	tried     []worker.Trial
	report    func(worker.Trial)
}

// made tries a number of rows.
func (s *rowSeeker) made(rows int, most memory.Bytes) (worker.Trial, error) {
	t, err := s.try(s.ctx, rows, most)
	if err == nil && s.report != nil {
		s.report(t)
	}
	return t, err
}

// probe tries a number of rows, unless it has been tried already. It is a probe of [search.Largest].
func (s *rowSeeker) probe(_ context.Context, rows int) (memory.Bytes, error) {
	at := slices.IndexFunc(s.tried, func(t worker.Trial) bool { return t.Rows == rows })
	if at < 0 {
		if len(s.tried) >= sizesUsual && (len(s.tried) >= sizesMost || s.near()) {
			return 0, errEnough
		}
		t, err := s.made(rows, s.most)
		if err != nil {
			return 0, err
		}
		at, s.tried = len(s.tried), append(s.tried, t)
	}
	t, held := s.tried[at], s.trials.Held // a search sees only what a step adds
	if t.Fits {
		return max(1, t.Peak-held), nil
	}
	failure := *t.Failure()
	if failure.Stats.Allocated > 0 {
		failure.Stats.Allocated = max(0, failure.Stats.Allocated-held)
		failure.Stats.Reserved = max(0, failure.Stats.Reserved-held)
		failure.Stats.Capacity = max(0, failure.Stats.Capacity-held)
	}
	return 0, &failure
}

// near reports whether the largest number of rows that fits is known well enough.
func (s *rowSeeker) near() bool {
	fits, fails := 0, math.MaxInt
	for _, t := range s.tried {
		if t.Fits {
			fits = max(fits, t.Rows)
		} else {
			fails = min(fails, t.Rows)
		}
	}
	return float64(fits)*(1+wide) >= float64(fails)
}

// seek finds the largest number of rows that fits, here and within each memory that is asked for.
func (s *rowSeeker) seek(headroom float64) (*FoundRows, error) {
	if err := s.limit(); err != nil {
		return nil, err
	}
	f, err := s.largest(headroom)
	if err != nil {
		return nil, err
	}
	for _, card := range s.within {
		e, err := s.elsewhere(f, card, headroom)
		if err != nil {
			return nil, err
		}
		f.Elsewhere = append(f.Elsewhere, e)
	}
	f.Tried, f.Evaluation = s.tried, s.evaluation(f)
	return f, nil
}

// capacity returns how much memory the process may hold in a trial.
func (s *rowSeeker) capacity() memory.Bytes {
	if s.most > 0 {
		return s.most
	}
	return s.trials.Capacity
}

// largest finds the largest number of rows that fits. The first that is tried is the script's own: if its first step was
// made as a whole, nothing smaller is tried unless that fails.
func (s *rowSeeker) largest(headroom float64) (*FoundRows, error) {
	trials := s.trials
	least, most := min(2, trials.Rows), rowsMost // modules may need two rows, as BatchNorm does
	if trials.Whole {
		least = min(trials.Rows, rowsMost)
		if _, err := s.probe(s.ctx, least); errors.As(err, new(*memory.OutOfMemoryError)) {
			least, most = min(2, least), max(2, least-1) // the first step had no optimizer's state
		} else if err != nil {
			return nil, err
		}
	}
	r, err := search.Largest(s.ctx, search.Options{Min: least, Max: most, Capacity: max(1, s.capacity()-trials.Held), Confirm: 1}, s.probe)
	var failed *memory.OutOfMemoryError
	switch {
	case errors.Is(err, search.ErrNothingFits) && errors.As(err, &failed):
		return nil, &harness.GaveUpError{Step: 1, Decision: recovery.Decision{Remedy: recovery.Stop, Plan: recovery.Plan{Effective: trials.Rows * trials.Times * trials.World, World: trials.World, Micro: 1},
			Reason: fmt.Sprintf("not even %d rows fit", least), Hint: "use a smaller model, activation checkpointing, or an optimizer with less state"}}
	case err != nil && !errors.Is(err, errEnough):
		return nil, err
	}
	return concluded(trials, s.tried, s.capacity(), r, headroom), nil
}

// concluded returns the answer of a search in so much memory. It decides nothing but what to recommend.
func concluded(trials *worker.Trials, tried []worker.Trial, available memory.Bytes, r search.Result, headroom float64) *FoundRows {
	f := &FoundRows{Rows: trials.Rows, Effective: trials.Rows * trials.Times * trials.World, Uncut: trials.Uncut, Device: trials.Device, Largest: r.Fits, Line: lineOf(tried),
		Available: available, Weights: trials.Weights, Gradients: trials.Gradients, States: trials.States, Together: trials.Together, Batches: trials.Batches, Tried: tried}
	if trials.World > 1 {
		f.World = trials.World
	}
	for _, t := range tried {
		if !t.Fits && t.Rows > f.Largest && (f.Fails == 0 || t.Rows < f.Fails) {
			f.Fails = t.Rows
		}
	}
	f.Foreseen = f.Fails != f.Largest+1 && f.Line.PerSample > 0 && f.Line.At(f.Largest+1) > float64(f.Available)
	f.Levers = levers(trials, f)
	most := f.leaving(f.Largest, headroom, f.Available)
	f.Recommended = f.plan(most)
	f.Reason = fmt.Sprintf("%v: ", f.Recommended) + f.known()
	if most < f.Largest {
		f.Reason += fmt.Sprintf("; up to %d leave at least %.3g %% of the memory unused", most, 100*headroom)
	}
	return f
}

// plan returns what to use of micro-batches of at most so many rows.
func (f *FoundRows) plan(most int) recovery.Plan {
	world := max(1, f.World)
	return recovery.Plan{Effective: f.Effective, World: world, Micro: recommendedRows(f.Effective/world, most, f.Tried)}
}

// leaving returns how many of the given number of rows leave a share of the memory unused, by the line; all of them if not even
// one does.
func (f *FoundRows) leaving(rows int, share float64, available memory.Bytes) int {
	use := (1 - share) * float64(available)
	if f.Line.PerSample <= 0 || f.Line.At(1) > use {
		return rows
	}
	return f.within(rows, use)
}

// within returns how many of the given number of rows a step can be run on in so many bytes, by the line; at least 1.
func (f *FoundRows) within(rows int, bytes float64) int {
	for rows > 1 && f.Line.PerSample > 0 && f.Line.At(rows) > bytes {
		rows = max(1, min(rows-1, int((bytes-f.Line.Base)/f.Line.PerSample)))
	}
	return rows
}

// lineOf returns the line through the peaks of the two largest sizes that fitted: with few rows the peak is that of
// the gradients, and does not grow.
func lineOf(tried []worker.Trial) search.Line {
	var fitted []worker.Trial
	for _, t := range tried {
		if t.Fits {
			fitted = append(fitted, t)
		}
	}
	slices.SortFunc(fitted, func(a, b worker.Trial) int { return b.Rows - a.Rows })
	if len(fitted) < 2 {
		return search.Line{}
	}
	// Two neighbouring sizes differ by less than is measured.
	low := slices.IndexFunc(fitted, func(t worker.Trial) bool { return 4*t.Rows <= 3*fitted[0].Rows })
	if low < 0 {
		low = len(fitted) - 1
	}
	return search.Fit([]search.Probe{{N: fitted[0].Rows, Peak: fitted[0].Peak, Fits: true}, {N: fitted[low].Rows, Peak: fitted[low].Peak, Fits: true}})
}

// recommendedRows returns the micro-batch to use for an effective batch, at most most: the largest that divides it,
// if that is nearly as fast as the fastest; otherwise the largest, which leaves one micro-batch smaller than the others.
func recommendedRows(effective, most int, tried []worker.Trial) int {
	most = min(most, effective)
	wanted := (1 - nearlyFastest) * speedAt(tried, most)
	for _, t := range tried {
		if t.Fits && t.Rows <= most {
			wanted = max(wanted, (1-nearlyFastest)*float64(t.Rows)/t.Seconds)
		}
	}
	for n := most; n > most/2; n-- {
		if effective%n == 0 && speedAt(tried, n) >= wanted {
			return n
		}
	}
	return most
}

// speedAt returns about how many rows a second are trained with a micro-batch of n rows, from the sizes that were timed
// on both sides of it. It returns 0 if none was.
func speedAt(tried []worker.Trial, n int) float64 {
	var below, above worker.Trial
	for _, t := range tried {
		if !t.Fits || t.Seconds <= 0 {
			continue
		}
		if t.Rows <= n && t.Rows > below.Rows {
			below = t
		}
		if t.Rows >= n && (above.Rows == 0 || t.Rows < above.Rows) {
			above = t
		}
	}
	switch {
	case below.Rows == 0 && above.Rows == 0:
		return 0
	case below.Rows == 0:
		return float64(n) / above.Seconds // no faster than that
	case above.Rows == 0 || above.Rows == below.Rows:
		return float64(below.Rows) / below.Seconds
	}
	share := float64(n-below.Rows) / float64(above.Rows-below.Rows)
	return float64(n) / (below.Seconds + share*(above.Seconds-below.Seconds))
}

// known says what is known about the largest number of rows.
func (f *FoundRows) known() string {
	r := search.Result{Max: rowsMost, Fits: f.Largest, Fails: f.Fails}
	text := r.String()
	if f.Foreseen {
		text = fmt.Sprintf("micro-batch %d fits, and by the measured line %d does not", f.Largest, f.Largest+1)
	}
	return text
}
