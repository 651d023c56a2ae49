package search_test

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"headroom/memory"
	"headroom/search"
)

const capacity = 24 * memory.GiB

// machine is a device on which size n needs need(n) and reports a peak of peak(n), both
// as shares of the capacity. When a size fails, idle is the share of the capacity that is
// not handed out.
type machine struct {
	need, peak func(n int) float64
	handed     func(n int) float64 // share of the capacity that is handed out when size n fails; nil means all but idle
	idle       float64
}

func (m machine) probe(_ context.Context, n int) (memory.Bytes, error) {
	need := m.need(n)
	if need <= 1 {
		if m.peak != nil {
			return share(m.peak(n)), nil
		}
		return share(need), nil
	}
	if m.handed != nil {
		return 0, outOfMemory(m.handed(n)-0.01, 0.01)
	}
	return 0, outOfMemory(1-m.idle, 0.01)
}

func share(s float64) memory.Bytes { return memory.Bytes(s * float64(capacity)) }

// outOfMemory returns the failure of an allocation. The arguments are the memory that had
// already been handed out and the memory that was requested, both as shares of the
// capacity.
func outOfMemory(allocated, requested float64) error {
	return fmt.Errorf("forward: %w", &memory.OutOfMemoryError{
		Requested: share(requested),
		Stats:     memory.Stats{Capacity: capacity, Reserved: capacity, Allocated: share(allocated)},
	})
}

// largest returns the largest size up to most that fits, or 0 if there is none. It
// bisects without package search.
func (m machine) largest(most int) int {
	n := 0
	for step := 1 << 17; step > 0; step /= 2 {
		if n+step <= most && m.need(n+step) <= 1 {
			n += step
		}
	}
	return n
}

// affine returns a machine that needs the share base + (1−base)·n/(limit+½) of the
// capacity, so that limit fits and limit+1 does not.
func affine(base float64, limit int) machine {
	return machine{need: func(n int) float64 { return base + (1-base)*float64(n)/(float64(limit)+0.5) }}
}

// perceptron returns a machine with the memory of the preset mlp-tight, whose tensors are
// rounded up to 512 bytes. According to the peaks, 497 should fit in 3 MiB. But for every
// size larger than fits, the last allocation finds only pieces that are too small. For
// mlp-tight, the argument fits is 488.
func perceptron(fits int) machine {
	round := func(n int) int { return (n + 511) / 512 * 512 }
	peak := func(n int) float64 {
		return float64(960000+4096*n+round(256*n)+round(40*n)+round(4*n)) / (3 << 20)
	}
	need := func(n int) float64 {
		if n > fits {
			return 2
		}
		return peak(n)
	}
	return machine{need: need, peak: peak, handed: peak}
}

// short reports whether fits, the answer of a search, falls short of the largest size
// that fits by more than 2 % and by more than 1.
func short(fits, largest int) bool {
	return float64(fits) < min(0.98*float64(largest), float64(largest-1))
}

// kinds are monotone curves over x = n/limit. The argument u, in [0, 1], sets the
// shape of each curve.
var kinds = map[string]func(base, u float64, limit int) machine{
	"affine": func(base, _ float64, limit int) machine { return affine(base, limit) },
	"convex": func(base, u float64, limit int) machine {
		return bent(base, limit, func(x float64) float64 { return math.Pow(x, 1+u) })
	},
	"concave": func(base, u float64, limit int) machine {
		return bent(base, limit, func(x float64) float64 { return math.Pow(x, 1-u/2) })
	},
	"stepped": func(base, u float64, limit int) machine {
		width := 1 + u*float64(limit)/4
		return machine{need: func(n int) float64 {
			return base + (1-base)*math.Ceil(float64(n)/width)*width/(float64(limit)+width)
		}}
	},
	"plateau": func(base, u float64, limit int) machine {
		return bent(base, limit, func(x float64) float64 {
			if x > u && x <= 1 {
				return u
			}
			return x
		})
	},
	"cliff": func(base, u float64, limit int) machine {
		return bent(base, limit, func(x float64) float64 {
			if x > 1 {
				return 100
			}
			return x * u
		})
	},
	"reserved": func(base, u float64, limit int) machine {
		m := affine(base, limit)
		m.idle = 0.05 + 0.03*u
		m.peak = func(n int) float64 { return m.need(n) * (1 - m.idle) }
		return m
	},
	"without peaks": func(base, _ float64, limit int) machine {
		m := affine(base, limit)
		m.peak = func(int) float64 { return 0 }
		return m
	},
}

func bent(base float64, limit int, f func(x float64) float64) machine {
	return machine{need: func(n int) float64 { return base + (1-base)*f(float64(n)/(float64(limit)+0.5)) }}
}

// logSize draws a size so that each order of magnitude is equally likely.
func logSize(t *rapid.T, most int, name string) int {
	return int(math.Exp(rapid.Float64Range(0, math.Log(float64(most))).Draw(t, name)))
}

// trajectory returns a search in the form "4 8 31 32! | 31 31". Sizes with a ! failed,
// and the bar marks the end of the search.
func trajectory(r search.Result) string {
	var b strings.Builder
	for i, p := range r.Probes {
		if i == r.Searched && i > 0 {
			b.WriteString(" |")
		}
		if i > 0 {
			b.WriteByte(' ')
		}
		fmt.Fprint(&b, p.N)
		if !p.Fits {
			b.WriteByte('!')
		}
	}
	return b.String()
}

func failures(probes []search.Probe) (n int) {
	for _, p := range probes {
		if !p.Fits {
			n++
		}
	}
	return n
}

// checkEnded checks what the package promises of every search that ends without an
// error.
func checkEnded(t interface {
	Helper()
	Fatalf(string, ...any)
}, o search.Options, r search.Result) {
	t.Helper()
	if r.Searched > o.Bound() {
		t.Fatalf("%d probes, bound is %d: %s", r.Searched, o.Bound(), trajectory(r))
	}
	confirmed := map[int]int{}
	for _, p := range r.Probes[r.Searched:] {
		if confirmed[p.N]++; !p.Fits {
			confirmed[p.N] = 0
		}
	}
	for _, n := range []int{r.Fits, r.Recommended} {
		if n != 0 && confirmed[n] < 2 {
			t.Fatalf("%d was not confirmed twice: %s", n, trajectory(r))
		}
	}
	if r.Recommended > r.Fits || r.Fails != 0 && r.Fails <= r.Fits {
		t.Fatalf("recommended %d, fits %d, fails %d", r.Recommended, r.Fits, r.Fails)
	}
	if last := r.Probes[len(r.Probes)-1]; r.Recommended != 0 && (!last.Fits || last.N != r.Recommended && last.N != r.Fits) {
		t.Fatalf("the last probe is not the answer, %d and %d: %s", r.Fits, r.Recommended, trajectory(r))
	}
}

func mustSearch(t *testing.T, o search.Options, m machine) search.Result {
	t.Helper()
	r, err := search.Largest(context.Background(), o, m.probe)
	if err != nil {
		t.Fatal(err)
	}
	checkEnded(t, o, r)
	return r
}
