package job

import (
	"slices"
	"testing"

	"headroom/memory"
	"headroom/search"
	"headroom/worker"
)

// TestLevers checks what is said to make room for more rows: only what was measured, and no more than that.
func TestLevers(t *testing.T) {
	type lever struct {
		rows int
		of   string
	}
	const eightBits, pieces = "are three quarters of the optimizer's states of 32 bits", "lay in free pieces when an allocation failed"
	largest := worker.Trial{Rows: 100, Fits: true, Peak: 11000, Update: 9000}
	after := func(first memory.Bytes) worker.Trial {
		t := largest
		t.First = first
		return t
	}
	over := largest
	over.Update = 11700
	for name, c := range map[string]struct {
		trials worker.Trials
		tried  []worker.Trial
		failed *memory.Fragments
		each   float64
		want   []lever
	}{
		"nothing is known":           {worker.Trials{Gradients: 500, States: 1000}, []worker.Trial{largest}, nil, 100, nil},
		"no line":                    {worker.Trials{Device: "gpu", Full: 4000}, []worker.Trial{largest}, nil, 0, nil},
		"too little":                 {worker.Trials{Device: "gpu", Full: 200}, []worker.Trial{largest}, nil, 100, nil},
		"states":                     {worker.Trials{Device: "gpu", Full: 1200}, []worker.Trial{largest}, nil, 100, []lever{{9, eightBits}}},
		"states on the host":         {worker.Trials{Device: "cpu", Full: 1200}, []worker.Trial{largest}, nil, 100, nil},
		"gradients":                  {worker.Trials{Keeps: true, Gradients: 500}, []worker.Trial{after(10600)}, nil, 100, []lever{{4, keptGradients}}},
		"gradients that do not stay": {worker.Trials{Gradients: 500}, []worker.Trial{after(10600)}, nil, 100, nil},
		"results":                    {worker.Trials{Rows: 50, Stays: 200}, []worker.Trial{after(10000)}, nil, 100, []lever{{4, keptResults}}},
		"results of less":            {worker.Trials{Rows: 50, Stays: 2000}, []worker.Trial{after(10000)}, nil, 100, []lever{{10, keptResults}}},
		"results, but not known":     {worker.Trials{Rows: 50, Stays: 2000}, []worker.Trial{largest}, nil, 100, nil},
		"both":                       {worker.Trials{Rows: 50, Stays: 2000, Keeps: true, Gradients: 300}, []worker.Trial{after(10000)}, nil, 100, []lever{{7, keptResults}, {3, keptGradients}}},
		"another size":               {worker.Trials{Rows: 50, Stays: 2000}, []worker.Trial{largest, {Rows: 50, Fits: true, Peak: 6000, First: 5000}}, nil, 100, nil},
		"the optimizer's step":       {worker.Trials{}, []worker.Trial{over}, nil, 100, []lever{{7, "are what its step takes beyond forward and backward"}}},
		"pieces":                     {worker.Trials{}, []worker.Trial{largest}, &memory.Fragments{Pieces: 900, Pages: 800, Freed: 200}, 100, []lever{{6, pieces}}},
		"expandable already":         {worker.Trials{}, []worker.Trial{largest}, &memory.Fragments{Pages: 800, Expandable: true}, 100, nil},
	} {
		f := &FoundRows{Largest: 100, Fails: 101, Line: search.Line{Base: 1000, PerSample: c.each}, Tried: c.tried}
		if c.failed != nil {
			f.Tried = append(f.Tried, worker.Failed(101, memory.OutOfMemoryError{Fragments: c.failed}))
		}
		var got []lever
		for _, l := range levers(&c.trials, f) {
			got = append(got, lever{l.Rows, l.Of})
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
