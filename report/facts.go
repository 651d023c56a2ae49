package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"headroom/memory"
	"headroom/report/words"
	"headroom/runs"
)

// Usage is how much memory there was and how much of it was used. An unknown amount is 0.
type Usage struct {
	Capacity     memory.Bytes // in the newest step or, if no step records it, in the newest failure
	Peak         memory.Bytes // largest allocated in any step
	PeakStep     int
	PeakReserved memory.Bytes // largest reserved in any step
	Headroom     float64      // 1 − Peak / Capacity; NaN if not known
	Tightest     float64      // smallest share of the available memory that a step left unused; NaN if not known
	TightestStep int
	Foreign      memory.Bytes // most that other processes held after any step
	ForeignFrom  int          // first and last step at which they held clearly more than at the start; 0 if there is none
	ForeignTo    int
	Host         memory.Bytes // most of the host's memory that any step used in place of the GPU's
	HostLost     float64      // seconds that steps took longer for that, as far as that is known
	Ranks        []RankUse    // of several ranks, those that used memory of the host; the one that lost most time first
	Retries      int64        // allocations that succeeded only after the cache was emptied, up to the last step
}

func memoryUse(steps []runs.StepReport, entries []runs.Entry) Usage {
	m := Usage{Tightest: math.NaN(), Headroom: math.NaN()}
	for _, e := range entries {
		if e.OOM == nil {
			continue
		}
		s := e.OOM.Measured().Stats
		m.Capacity, m.Foreign = cmp.Or(s.Capacity, m.Capacity), max(m.Foreign, s.Foreign)
	}
	for i, s := range steps {
		m.step(s, steps[0].Memory.Foreign)
		if last := i == len(steps)-1; last && s.Memory.Capacity > 0 {
			m.Capacity, m.Retries = s.Memory.Capacity, s.Memory.Retries
		}
	}
	if m.Capacity > 0 && m.Peak > 0 {
		m.Headroom = 1 - float64(m.Peak)/float64(m.Capacity)
	}
	return m
}

func (m *Usage) step(s runs.StepReport, atFirst memory.Bytes) {
	if s.Memory.Peak > m.Peak {
		m.Peak, m.PeakStep = s.Memory.Peak, s.Step
	}
	m.PeakReserved = max(m.PeakReserved, s.Memory.PeakReserved)
	m.Foreign = max(m.Foreign, s.Memory.Foreign)
	if grown := s.Memory.Foreign - atFirst; grown > s.Memory.Capacity/50 {
		if m.ForeignFrom == 0 {
			m.ForeignFrom = s.Step
		}
		m.ForeignTo = s.Step
	}
	room := s.Memory.Available()
	if room > 0 && s.Memory.Peak > 0 {
		// Other processes may have come after the peak. Then no memory was left: the
		// share is 0, not negative.
		share := max(0, 1-float64(s.Memory.Peak)/float64(room))
		if !(share >= m.Tightest) {
			m.Tightest, m.TightestStep = share, s.Step
		}
	}
}

// Speed is the run's throughput in samples per second.
type Speed struct {
	Median        float64 // over all steps; NaN if not known
	Before, After float64 // medians of the steps before the first failure, and after the last failure or change of plan; NaN if there are no such steps
	InSteps       float64 // seconds in steps that were not rolled back
}

func speed(r *Report) Speed {
	from, to := math.MaxInt, 0
	for _, row := range r.Ledger {
		if row.Failed {
			from = min(from, row.Step)
		}
		if row.Failed || row.micro > 0 {
			to = max(to, row.Step)
		}
	}
	var all, before, after []float64
	s := Speed{}
	for _, step := range r.steps {
		s.InSteps += step.Seconds
		v := rate(&step)
		if math.IsNaN(v) {
			continue
		}
		all = append(all, v)
		if step.Step < from {
			before = append(before, v)
		}
		if step.Step > to {
			after = append(after, v)
		}
	}
	s.Median, s.Before, s.After = median(all), math.NaN(), math.NaN()
	if r.Failures.Total > 0 {
		s.Before, s.After = median(before), median(after)
	}
	return s
}

// rate returns the samples per second of a step, or NaN if its time is not known.
func rate(s *runs.StepReport) float64 {
	if s.Seconds <= 0 {
		return math.NaN()
	}
	return float64(s.Samples) / s.Seconds
}

// median sorts v and returns its middle value, or NaN if v is empty.
func median(v []float64) float64 {
	if len(v) == 0 {
		return math.NaN()
	}
	slices.Sort(v)
	return v[len(v)/2]
}

// Loss is the first, last and lowest loss of the run. A loss that is not known is NaN.
type Loss struct {
	First, Last, Lowest float64
	LowestStep          int
	NotFinite           int // steps whose loss is NaN or infinite
}

func loss(steps []runs.StepReport) Loss {
	l := Loss{First: math.NaN(), Last: math.NaN(), Lowest: math.NaN()}
	for i, s := range steps {
		if i == 0 {
			l.First = s.Loss
		}
		l.Last = s.Loss
		if math.IsNaN(s.Loss) || math.IsInf(s.Loss, 0) {
			l.NotFinite++
		} else if !(s.Loss >= l.Lowest) {
			l.Lowest, l.LowestStep = s.Loss, s.Step
		}
	}
	return l
}

// Checkpoints counts the checkpoints of a run. A wrapped command saves its own
// checkpoints, and headroom looks only for the newest whole one after each attempt. For a
// command, headroom therefore does not know how many checkpoints were saved, or how many
// could not be saved.
type Checkpoints struct {
	Written, Failed, Damaged int
	Newest                   int     // step of the newest whole checkpoint; 0 if there is none, or if its name does not give a step
	Path                     string  // path of the newest checkpoint of a wrapped command; "" if not known
	Seconds                  float64 // time spent on the checkpoints written
	attempt                  int     // attempt in which the newest one was written
}

func checkpoints(in Input, b *body) Checkpoints {
	c := Checkpoints{}
	for _, e := range in.Entries {
		switch e.Kind {
		case runs.KindCheckpoint:
			c.Written++
			c.Newest, c.Path, c.attempt = e.Step, e.Path, e.Attempt
			c.Seconds += e.Seconds
		case runs.KindAttempt: // it starts from the newest whole checkpoint, or over
			if e.Step != c.Newest && (b.resumes || e.Step > 0) {
				c.Newest, c.Path = e.Step, ""
			}
		case runs.KindCheckpointFailed:
			c.Failed++
		case runs.KindDamaged:
			c.Damaged++
		}
	}
	return c
}

// Size sums up all steps that were cut into micro-batches in the same way.
type Size struct {
	Micro        int // largest micro-batch of the step
	Accumulation int
	Steps        int
	From, To     int          // first and last of these steps
	Peak         memory.Bytes // largest peak of these steps
	Speed        float64      // median samples per second, NaN if not known
	rates        []float64
}

func sizes(steps []runs.StepReport) []Size {
	type key struct{ micro, accumulation int }
	found := map[key]*Size{}
	for _, s := range steps {
		if len(s.Splits) == 0 {
			continue
		}
		k := key{slices.Max(s.Splits), len(s.Splits)}
		if found[k] == nil {
			found[k] = &Size{Micro: k.micro, Accumulation: k.accumulation, From: s.Step}
		}
		z := found[k]
		z.Steps++
		z.To = s.Step
		z.Peak = max(z.Peak, s.Memory.Peak)
		if v := rate(&s); !math.IsNaN(v) {
			z.rates = append(z.rates, v)
		}
	}
	var all []Size
	for _, z := range found {
		z.Speed, z.rates = median(z.rates), nil
		all = append(all, *z)
	}
	slices.SortFunc(all, func(a, b Size) int {
		return cmp.Or(b.Micro-a.Micro, a.Accumulation-b.Accumulation)
	})
	return all
}

// Rate returns the throughput in words.
func (s Size) Rate() string {
	if math.IsNaN(s.Speed) {
		return "–"
	}
	return words.Number(s.Speed)
}

// about returns what the newest entries say about a command: how it was recognised, where
// its checkpoints are, and the versions of Python and PyTorch that a worker found in it.
func about(entries []runs.Entry) string {
	known, versions := "", ""
	for _, e := range entries {
		if e.Kind == runs.KindCommand {
			known = e.Text
		}
		if a := e.Attached; a != nil {
			versions = "Python " + a.Python
			if a.Torch != "none" { // PyTorch had been imported
				versions += ", PyTorch " + a.Torch
			}
		}
	}
	return clipped(strings.Trim(known+" · "+versions, " ·"), textLimit)
}

// ran returns the versions of headroom that executed the attempts, oldest first. Each
// version is named once.
func ran(entries []runs.Entry) string {
	var all []string
	for _, e := range entries {
		if e.Version != "" && !slices.Contains(all, e.Version) {
			all = append(all, e.Version)
		}
	}
	return clipped(strings.Join(all, ", then "), textLimit)
}

// DrawnBy names the version of headroom that executed the run, if that is recorded, and
// the version that drew the report.
func (r *Report) DrawnBy() string {
	drew := strings.TrimSpace("headroom " + r.Version)
	switch r.Ran {
	case "":
		return "Drawn by " + drew
	case r.Version:
		return "Run and drawn by " + drew
	}
	return fmt.Sprintf("Run by headroom %s, drawn by %s", r.Ran, drew)
}
