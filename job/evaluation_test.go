package job

import (
	"context"
	"errors"
	"testing"

	"headroom/memory"
	"headroom/worker"
)

// TestEvaluationRows checks how many rows are said to fit without gradients: never more than was run, and nearly as many as do.
func TestEvaluationRows(t *testing.T) {
	for name, c := range map[string]struct {
		each, more memory.Bytes // for a row, and in addition for each row squared, in thousandths
		least      int          // fails with fewer rows
		want, made int
		unknown    bool
	}{
		"a tenth of a step":         {each: 10, want: 853, made: 2},
		"next to nothing":           {each: 1, want: 1440, made: 2},
		"nothing":                   {each: 0, want: 1440, made: 2},
		"as much as a step":         {each: 90, want: 94, made: 2},
		"more than a step":          {each: 110, want: 67, made: 3},
		"it bends":                  {each: 10, more: 10, want: 436, made: 3},
		"it cannot be evaluated":    {each: -1, unknown: true, made: 1},
		"nothing fits, to be known": {each: 10000, unknown: true, made: 3},
	} {
		t.Run(name, func(t *testing.T) {
			s := machineOf(8, 1, true, 1000, 100, 10000, 0)
			f, err := s.seek(0.08)
			if err != nil || f.Largest != 90 || f.Evaluation != nil {
				t.Fatalf("%+v, %v", f, err)
			}
			f.Gradients = 200
			made, largest := 0, 0
			s.evaluates = true
			s.evaluate = func(_ context.Context, n int, _ memory.Bytes) (worker.Trial, error) {
				made++
				if c.each < 0 {
					return worker.Trial{}, errors.New("the model returns no loss")
				}
				peak := 1200 + memory.Bytes(n)*c.each + memory.Bytes(n*n)*c.more/1000
				if peak <= 10000 {
					largest = max(largest, n)
				}
				return worker.Trial{Rows: n, Fits: peak <= 10000, Peak: peak}, nil
			}
			e := s.evaluation(f)
			if (e == nil) != c.unknown || made != c.made {
				t.Fatalf("%+v, after %d", e, made)
			}
			if e != nil && (e.Largest != largest || e.Largest != c.want || e.More != (e.Largest == 1440)) {
				t.Errorf("%+v, want %d", e, c.want)
			}
		})
	}
}
