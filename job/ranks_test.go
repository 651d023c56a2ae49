package job

import (
	"context"
	"errors"
	"testing"
	"time"

	"headroom/worker"
)

// TestRanksAreGathered checks that trials begin once every rank of the training has arrived, once, and not before; and what happens if one
// does not come.
func TestRanksAreGathered(t *testing.T) {
	rank := func(rank, world int) *worker.Trials { return &worker.Trials{Rank: rank, World: world} }
	gone, over := make(chan struct{}), make(chan struct{})
	close(over)
	for name, c := range map[string]struct {
		first    *worker.Trials
		arriving []*worker.Trials
		gone     chan struct{}
		want     int
		missing  bool
	}{
		"alone":             {rank(0, 1), nil, gone, 1, false},
		"several":           {rank(1, 3), []*worker.Trials{rank(0, 3), rank(2, 3)}, gone, 3, false},
		"one comes twice":   {rank(1, 2), []*worker.Trials{rank(1, 2), rank(0, 2)}, gone, 2, false},
		"another training":  {rank(0, 2), []*worker.Trials{rank(1, 4), rank(1, 2)}, gone, 2, false},
		"one does not come": {rank(0, 3), []*worker.Trials{rank(1, 3)}, gone, 0, true},
		"one cannot":        {rank(0, 3), nil, over, 0, false},
	} {
		arriving := make(chan *worker.Trials, len(c.arriving))
		for _, t := range c.arriving {
			arriving <- t
		}
		within := time.Minute
		if c.missing {
			within = time.Millisecond
		}
		all, err := gathered(context.Background(), c.first, arriving, c.gone, within)
		if len(all) != c.want || errors.Is(err, errMissing) != c.missing {
			t.Errorf("%s: %d, %v", name, len(all), err)
		}
	}
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	if all, err := gathered(cancelled, rank(0, 2), nil, gone, time.Minute); all != nil || err != nil {
		t.Errorf("%v, %v", all, err)
	}
}

// TestSmallestOfRanks checks that ranks count as one that has no more room than any of them, and needs no less.
func TestSmallestOfRanks(t *testing.T) {
	all := ranks{
		{World: 2, Rows: 8, Times: 1, Whole: true, Keeps: true, Capacity: 1000, Held: 100, Beside: 7, Weights: 50, Gradients: 40, States: 90, Full: 90, Stays: 5, Together: 6},
		{World: 2, Rows: 6, Times: 2, Capacity: 900, Held: 300, Beside: 5, Weights: 60, Gradients: 30, States: 80, Full: 70, Stays: 9, Together: 8, Uncut: "why"},
	}
	want := worker.Trials{World: 2, Rows: 8, Times: 2, Capacity: 900, Held: 100, Beside: 7, Weights: 60, Gradients: 40, States: 90, Full: 70, Stays: 5, Together: 8, Uncut: "why"}
	got := *all.smallest()
	if got.Capacity != want.Capacity || got.Held != want.Held || got.Beside != want.Beside || got.Rows != want.Rows || got.Times != want.Times || got.Whole || got.Keeps || got.Uncut != "why" ||
		got.Weights != 60 || got.Gradients != 40 || got.States != 90 || got.Full != 70 || got.Stays != 5 || got.Together != 8 || all[0].Capacity != 1000 {
		t.Errorf("%+v, want %+v", got, want)
	}
	few := worker.Trial{Rows: 4, Fits: true, Peak: 700, Update: 600, Capacity: 1000, Seconds: 2}
	most := worker.Trial{Rows: 4, Fits: true, Peak: 800, Update: 500, Capacity: 900, Seconds: 1}
	none := worker.Trial{Rows: 4, Capacity: 950}
	both := worker.Trial{Rows: 4, Fits: true, Peak: 800, Update: 600, Capacity: 900, Seconds: 2}
	for _, tried := range [][]worker.Trial{{few, most}, {most, few}} {
		if got := slowest(tried); got.Peak != both.Peak || got.Update != both.Update || got.Capacity != 900 || got.Seconds != 2 || !got.Fits {
			t.Errorf("%+v", got)
		}
	}
	for _, tried := range [][]worker.Trial{{few, none, most}, {none, few}} {
		if got := slowest(tried); got.Fits {
			t.Errorf("%+v", got)
		}
	}
	_, err := all.each(func(r *worker.Trials) (worker.Trial, error) {
		if r == all[1] {
			return worker.Trial{}, worker.ErrGone
		}
		return few, nil
	})
	if !errors.Is(err, worker.ErrGone) {
		t.Error(err)
	}
}
