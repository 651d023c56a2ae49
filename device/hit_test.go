package device

import (
	"fmt"
	"testing"
)

// TestHitsMakeNoGarbage: once the cache is warm, a step's allocations cost no
// Go memory and do not reach the source.
func TestHitsMakeNoGarbage(t *testing.T) {
	a, s := open(t, 64<<20)
	hits := cycle(t, a, 100)
	before := s.reserves
	if n := testing.AllocsPerRun(100, hits); n != 0 {
		t.Errorf("%v Go allocations a cycle", n)
	}
	if s.reserves != before {
		t.Errorf("%d segments asked for", s.reserves-before)
	}
}

// cycle returns a function that allocates n tensors of assorted sizes and frees
// them: first every other tensor in the order of allocation, then the rest in
// reverse order. n must be even. cycle itself runs the function 20 times, to
// warm the cache.
func cycle(t testing.TB, a *Allocator, n int) func() {
	tensors := make([]Tensor, n)
	f := func() {
		for i := range tensors {
			tensors[i] = must(t)(a.Alloc(1+i*i*7919%50000, F32))
		}
		for i := 0; i < n; i += 2 {
			a.Free(tensors[i])
		}
		for i := n - 1; i > 0; i -= 2 {
			a.Free(tensors[i])
		}
	}
	for range 20 {
		f()
	}
	return f
}

// BenchmarkHit measures one Alloc and its Free among 10, 100 or 1000 other
// tensors with as many gaps between them.
func BenchmarkHit(b *testing.B) {
	for _, n := range []int{10, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			a, _ := open(b, 8<<30)
			var tensors []Tensor
			for i := range 2 * n {
				tensors = append(tensors, must(b)(a.Alloc(1+i*i*7919%50000, F32)))
			}
			for i, x := range tensors {
				if i%2 == 0 {
					a.Free(x)
				}
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				a.Free(must(b)(a.Alloc(tensors[i*2%len(tensors)].Len, F32)))
			}
		})
	}
}
