package search_test

import (
	"testing"

	"headroom/search"
)

func TestTrajectories(t *testing.T) {
	const eight = 0.08
	for _, c := range []struct {
		name    string
		options search.Options
		machine machine
		want    string
		fails   int
	}{
		{"affine, capacity known", search.Options{Max: 512, Capacity: capacity, Headroom: eight}, affine(0.08, 31), "1 8 27 31 32! | 31 31 28 28", 32},
		{"affine, no headroom", search.Options{Max: 512, Capacity: capacity}, affine(0.08, 31), "1 8 27 31 32! | 31 31", 32},
		{"affine, capacity learnt from the first failure", search.Options{Max: 512, Headroom: eight}, affine(0.08, 31), "1 8 64! 31 32! | 31 31 28 28", 32},
		{"a wide range changes nothing", search.Options{Max: 65536, Capacity: capacity, Headroom: eight}, affine(0.08, 31), "1 8 27 31 32! | 31 31 28 28", 32},
		{"a large size", search.Options{Max: 65536, Capacity: capacity, Headroom: eight}, affine(0.3, 30000), "1 2 35 30000 30001! | 30000 30000 26571 26571", 30001},
		{"everything fits", search.Options{Max: 512, Capacity: capacity, Headroom: eight}, affine(0.2, 2000), "1 4 164 512 | 512 512", 0},
		{"everything fits, just", search.Options{Max: 512, Capacity: capacity, Headroom: eight}, affine(0.2, 512), "1 4 129 512 | 512 512 461 461", 0},
		{"one size", search.Options{Min: 7, Max: 7, Capacity: capacity}, affine(0.2, 9), "7 | 7 7", 0},
		{"only the smallest fits", search.Options{Max: 64, Capacity: capacity}, affine(0.2, 1), "1 2! | 1 1", 2},
		{"only the smallest fits, capacity not known", search.Options{Max: 64}, affine(0.2, 1), "1 8! 4! 2! | 1 1", 2},
		{"reserved above allocated", search.Options{Max: 512, Capacity: capacity, Headroom: eight}, kinds["reserved"](0.08, 0.5, 31), "1 8 29 33! 31 32! | 31 31 29 29", 32},
		{"a minimum", search.Options{Min: 100, Max: 199, Capacity: capacity, Headroom: eight}, affine(0.1, 150), "100 127 150 151! | 150 150 137 137", 151},
		{"the first size takes most of it", search.Options{Min: 500, Max: 2000, Capacity: capacity}, affine(0.5, 1000), "500 595 1000 1001! | 1000 1000", 1001},
		{"next to nothing for a sample", search.Options{Max: 65536, Capacity: capacity}, affine(0, 60000), "1 256 53544 60000 60001! | 60000 60000", 60001},
		{"a minimum, capacity not known", search.Options{Min: 100, Max: 1000}, affine(0.2, 300), "100 800! 268 300 301! | 300 300", 301},
		{"no peak for the first size", search.Options{Max: 65536, Capacity: capacity}, machine{
			need: affine(0.2, 200).need,
			peak: func(n int) float64 {
				if n == 1 {
					return 0
				}
				return affine(0.2, 200).need(n)
			},
		}, "1 8 30 154 200 201! | 200 200", 201},
		{"an allocator that fails before the line does", search.Options{Max: 511, Capacity: capacity, Headroom: eight}, perceptron(488), "1 2 32 278 497! 488 | 488 488 439 439", 497},
		{"one that fails long before", search.Options{Max: 65536, Capacity: capacity}, perceptron(380), "1 2 32 307 497! 488! 479! 461! 428! 369 420! 412! 397! 383! 376 | 376 376", 383},
		{"a large size, reserved above allocated", search.Options{Max: 65536, Capacity: capacity}, kinds["reserved"](0.08, 0.5, 3100), "1 11 1150 3334! 3136! 3075 | 3075 3075", 3136},
		{"convex", search.Options{Max: 512, Capacity: capacity, Headroom: eight}, kinds["convex"](0.1, 1, 31), "1 8 89! 48! 28 33! 30 32! 31 | 31 31 30 30", 32},
		{"a cliff where the line promised room", search.Options{Max: 512, Capacity: capacity}, kinds["cliff"](0.1, 0.5, 31), "1 7 51! 29 40! 34! 31 32! | 31 31", 32},
		{"memory does not grow, then does", search.Options{Max: 512, Capacity: capacity}, kinds["plateau"](0.5, 0.02, 200), "1 2 14 149 469! 260! 196 226! 210! 202! 199 | 199 199", 202},
		{"peaks that fall at first", search.Options{Max: 512, Capacity: capacity}, machine{
			need: affine(0.2, 200).need,
			peak: func(n int) float64 {
				if n == 1 {
					return 0.5
				}
				return affine(0.2, 200).need(n)
			},
		}, "1 2 8 117 200 201! | 200 200", 201},
		{"no peaks", search.Options{Max: 512, Headroom: eight}, kinds["without peaks"](0.1, 0, 31), "1 8 64! 36! 22 29 32! 30 31 | 31 31 28 28", 32},
		{"more headroom than even the smallest leaves", search.Options{Max: 512, Capacity: capacity, Headroom: 0.5}, affine(0.6, 31), "1 2 7 31 32! | 31 31", 32},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := mustSearch(t, c.options, c.machine)
			if got := trajectory(r); got != c.want || r.Fails != c.fails {
				t.Errorf("got  %s, fails %d\nwant %s, fails %d", got, r.Fails, c.want, c.fails)
			}
		})
	}
}
