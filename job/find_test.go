package job

import (
	"context"
	"errors"
	"testing"

	"headroom/harness"
	"headroom/memory"
	"headroom/recovery"
	"headroom/worker"
)

// machineOf returns trials of a step that needs base bytes and each bytes for a row, in capacity bytes; unused is how
// much of that something else takes once more than one size has been tried.
func machineOf(rows, times int, whole bool, base, each, capacity, unused memory.Bytes) *rowSeeker {
	trials := &worker.Trials{World: 1, Rows: rows, Times: times, Whole: whole, Device: "cpu", Capacity: capacity, Held: base}
	s := &rowSeeker{ctx: context.Background(), trials: trials}
	s.try = func(_ context.Context, n int, most memory.Bytes) (worker.Trial, error) {
		room := capacity
		if most > 0 {
			room = min(room, most)
		}
		if len(s.tried) > 1 {
			room -= unused
		}
		peak := base + memory.Bytes(n)*each
		return worker.Trial{Rows: n, Fits: peak <= room, Peak: peak, Capacity: room, Seconds: 0.1 + float64(n)/100}, nil
	}
	return s
}

// TestSeekRows checks the largest number of rows, the sizes that were tried for it, and what is recommended.
func TestSeekRows(t *testing.T) {
	for name, c := range map[string]struct {
		rows, times    int
		whole          bool
		base, each     memory.Bytes
		unused         memory.Bytes
		largest, tried int
		recommended    int
	}{
		"the batch fits many times":       {8, 1, true, 1000, 10, 0, 900, 5, 8},
		"accumulated":                     {8, 100, true, 1000, 10, 0, 900, 5, 800},
		"no divisor leaves enough":        {7, 101, true, 1000, 10, 0, 900, 5, 707},
		"the largest divisor":             {8, 1000, true, 1000, 10, 0, 900, 5, 800},
		"it did not fit":                  {2000, 1, false, 1000, 10, 0, 900, 5, 500},
		"the optimizer's state is missed": {950, 1, true, 1000, 10, 0, 900, 6, 475},
		"something else takes memory":     {8, 1, true, 1000, 10, 300, 862, 7, 8},
		"nothing leaves enough":           {8, 1000, true, 9600, 10, 0, 40, 5, 40},
	} {
		t.Run(name, func(t *testing.T) {
			s := machineOf(c.rows, c.times, c.whole, c.base, c.each, 10000, c.unused)
			f, err := s.seek(0.08)
			if err != nil {
				t.Fatal(err)
			}
			if f.Largest != c.largest || len(f.Tried) > c.tried {
				t.Errorf("largest %d, want %d, of %d sizes: %+v", f.Largest, c.largest, len(f.Tried), f.Tried)
			}
			want := recovery.Plan{Effective: c.rows * c.times, World: 1, Micro: c.recommended}
			if f.Recommended != want {
				t.Errorf("recommended %v, want %v: %s", f.Recommended, want, f.Reason)
			}
		})
	}
}

// TestNoRowsFit checks the error where nothing fits.
func TestNoRowsFit(t *testing.T) {
	s := machineOf(8, 1, false, 1000, 10000, 10000, 0)
	_, err := s.seek(0.08)
	if gave := (*harness.GaveUpError)(nil); !errors.As(err, &gave) || gave.Decision.Reason != "not even 2 rows fit" {
		t.Error(err)
	}
}

// TestSeekRowsElsewhere checks how many rows are said to fit into other memories than the 10000 bytes of this device: never more
// than do fit, and nearly as many, or the reason why that is not known.
func TestSeekRowsElsewhere(t *testing.T) {
	const bent = "memory does not grow in a straight line with the rows"
	type answer struct {
		rows int
		why  string
	}
	for name, c := range map[string]struct {
		curve  memory.Bytes // for each n² of n rows
		least  memory.Bytes // that any number of rows needs
		unused memory.Bytes // that nothing can use, for each 100 that there are
		within []memory.Bytes
		here   int // in the largest memory that was tried
		want   []answer
	}{
		"as much as here":              {within: []memory.Bytes{10000}, here: 90, want: []answer{{90, ""}}},
		"less":                         {within: []memory.Bytes{5000}, here: 40, want: []answer{{40, ""}}},
		"several":                      {within: []memory.Bytes{5000, 900, 8000, 40000}, here: 90, want: []answer{{40, ""}, {0, "not even a few rows fit"}, {70, ""}, {386, ""}}},
		"the largest takes this place": {within: []memory.Bytes{5000, 8000}, here: 70, want: []answer{{40, ""}, {70, ""}}},
		"much more":                    {within: []memory.Bytes{400000}, here: 90, want: []answer{{3950, ""}}},
		"not all can be used":          {unused: 5, within: []memory.Bytes{9000, 40000}, here: 85, want: []answer{{74, ""}, {370, ""}}},
		"a curve":                      {curve: 1, within: []memory.Bytes{40000}, here: 57, want: []answer{{0, bent}}},
		"few rows need as much":        {least: 5500, within: []memory.Bytes{5000, 40000}, here: 90, want: []answer{{0, "not even a few rows fit"}, {386, ""}}},
		"hardly any fit":               {least: 1200, curve: 2000, within: []memory.Bytes{40000}, here: 2, want: []answer{{0, "too few rows fit here to tell"}}},
	} {
		t.Run(name, func(t *testing.T) {
			fits := func(n int, room memory.Bytes) (memory.Bytes, bool) {
				peak := max(c.least, 1000+100*memory.Bytes(n)+c.curve*memory.Bytes(n*n))
				return peak, peak <= room-room*c.unused/100
			}
			s := machineOf(8, 1, true, 1000, 100, 10000, 0)
			s.try = func(_ context.Context, n int, most memory.Bytes) (worker.Trial, error) {
				room := memory.Bytes(10000)
				if most > 0 {
					room = min(room, most)
				}
				peak, fits := fits(n, room)
				return worker.Trial{Rows: n, Fits: fits, Peak: peak, Capacity: room, Seconds: 1}, nil
			}
			for _, size := range c.within {
				s.within = append(s.within, memory.Card{Name: size.String(), Memory: size})
			}
			f, err := s.seek(0.08)
			if err != nil {
				t.Fatal(err)
			}
			if f.Largest != c.here || len(f.Elsewhere) != len(c.want) {
				t.Fatalf("%d rows here, and %+v elsewhere", f.Largest, f.Elsewhere)
			}
			for i, want := range c.want {
				e := f.Elsewhere[i]
				if e.Largest != want.rows || e.Why != want.why || e.Estimated != (c.within[i] > 10000) || e.Memory != c.within[i] {
					t.Errorf("%v: %+v, want %+v", c.within[i], e, want)
				}
				if _, fits := fits(e.Largest, e.Memory); e.Largest > 0 && !fits {
					t.Errorf("%v: %d rows do not fit", c.within[i], e.Largest)
				}
				if (e.Recommended.Micro > 0) != (e.Largest > 0) || e.Recommended.Micro > e.Largest {
					t.Errorf("%v: recommended %v of %d rows", c.within[i], e.Recommended, e.Largest)
				}
			}
		})
	}
}

// TestCurvesAreFollowed checks that an estimate far beyond this device does not exceed what fits where memory bends so little that
// it passes for a straight line.
func TestCurvesAreFollowed(t *testing.T) {
	peak := func(n int) memory.Bytes { return 10000 + 1000*memory.Bytes(n) + memory.Bytes(n*n)/20 }
	s := machineOf(8, 1, true, 10000, 1000, 1000000, 0)
	s.try = func(_ context.Context, n int, most memory.Bytes) (worker.Trial, error) {
		return worker.Trial{Rows: n, Fits: peak(n) <= 1000000, Peak: peak(n), Capacity: 1000000, Seconds: 1}, nil
	}
	s.within = []memory.Card{{Name: "large", Memory: 16000000}}
	f, err := s.seek(0.08)
	if err != nil {
		t.Fatal(err)
	}
	if e := f.Elsewhere[0]; e.Largest < 9*f.Largest || peak(e.Largest) > e.Memory {
		t.Errorf("%+v, which needs %d", e, peak(e.Largest))
	}
}

// TestTrialsElsewhere checks which sizes are tried where the line is wrong: in a memory in which half of what it says fits, in one
// that what is held already exceeds, and where a size does not fit again for an estimate.
func TestTrialsElsewhere(t *testing.T) {
	s := machineOf(8, 1, true, 1000, 100, 10000, 0)
	again, tried := s.try, map[memory.Bytes]int{}
	s.try = func(ctx context.Context, n int, most memory.Bytes) (worker.Trial, error) {
		tried[most]++
		if most == 5000 && n > 22 || most == 0 && n == 67 {
			return worker.Trial{Rows: n, Capacity: 10000}, nil
		}
		return again(ctx, n, most)
	}
	s.trials.Held = 1000
	for _, size := range []memory.Bytes{5000, 1000, 40000} {
		s.within = append(s.within, memory.Card{Name: size.String(), Memory: size})
	}
	f, err := s.seek(0.08)
	if err != nil {
		t.Fatal(err)
	}
	if half := f.Elsewhere[0]; half.Largest != 20 {
		t.Errorf("%+v, want half of 40 rows", half)
	}
	if none := f.Elsewhere[1]; none.Largest != 0 || tried[1000] != 0 {
		t.Errorf("%+v, after %d trials", none, tried[1000])
	}
	if unsure := f.Elsewhere[2]; unsure.Largest != 0 || unsure.Why != "the same number of rows does not always fit" {
		t.Errorf("%+v", unsure)
	}
}

// TestNoCardOnTheHost checks that what a step needs on the CPU is not given as what it needs on a GPU.
func TestNoCardOnTheHost(t *testing.T) {
	s := machineOf(8, 1, true, 1000, 10, 10000, 0)
	card, _ := memory.FindCard("t4")
	s.within = []memory.Card{card}
	if _, err := s.seek(0.08); !errors.Is(err, ErrOnHost) || len(s.tried) > 0 {
		t.Errorf("%v, after %d sizes", err, len(s.tried))
	}
	s.trials.Device = "gpu"
	if _, err := s.seek(0.08); err != nil {
		t.Error(err)
	}
}

// TestBeside checks that what a device's memory holds beside what the process can hold is taken off.
func TestBeside(t *testing.T) {
	s := machineOf(8, 1, true, 1000, 100, 10000, 0)
	s.trials.Beside = 500
	s.within = []memory.Card{{Name: "small", Memory: 5000}}
	f, err := s.seek(0.08)
	if err != nil || f.Largest != 35 || f.Available != 4500 || f.Elsewhere[0].Available != 4500 {
		t.Errorf("%+v, %v", f, err)
	}
}
