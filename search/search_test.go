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
		{"affine, capacity learnt from the first failure", search.Options{Max: 512, Headroom: eight}, affine(0.08, 31), "1 4 64! 31 32! | 31 31 28 28", 32},
		{"a wide range changes nothing", search.Options{Max: 65536, Capacity: capacity, Headroom: eight}, affine(0.08, 31), "1 8 27 31 32! | 31 31 28 28", 32},
		{"a large size", search.Options{Max: 65536, Capacity: capacity, Headroom: eight}, affine(0.3, 30000), "1 2 35 30000 30001! | 30000 30000 26571 26571", 30001},
		{"everything fits", search.Options{Max: 512, Capacity: capacity, Headroom: eight}, affine(0.2, 2000), "1 4 164 512 | 512 512", 0},
		{"everything fits, just", search.Options{Max: 512, Capacity: capacity, Headroom: eight}, affine(0.2, 512), "1 4 129 512 | 512 512 461 461", 0},
		{"one size", search.Options{Min: 7, Max: 7, Capacity: capacity}, affine(0.2, 9), "7 | 7 7", 0},
		{"only the smallest fits", search.Options{Max: 64, Capacity: capacity}, affine(0.2, 1), "1 2! | 1 1", 2},
		{"only the smallest fits, capacity not known", search.Options{Max: 64}, affine(0.2, 1), "1 4! 2! | 1 1", 2},
		{"reserved above allocated", search.Options{Max: 512, Capacity: capacity, Headroom: eight}, kinds["reserved"](0.08, 0.5, 31), "1 8 29 33! 31 32! | 31 31 29 29", 32},
		{"multiples of eight", search.Options{Max: 1000, MultipleOf: 8, Capacity: capacity, Headroom: eight}, affine(0.1, 301), "8 56 248 296 304! | 296 296 272 272", 304},
		{"a minimum", search.Options{Min: 100, Max: 199, Capacity: capacity, Headroom: eight}, affine(0.1, 150), "100 127 150 151! | 150 150 137 137", 151},
		{"a tolerance", search.Options{Max: 512, Tolerance: 20, Capacity: capacity, Headroom: eight}, affine(0.1, 301), "21 142 299 320! | 299 299 274 274", 320},
		{"the first size takes most of it", search.Options{Min: 500, Max: 2000, Capacity: capacity}, affine(0.5, 1000), "500 595 1000 1001! | 1000 1000", 1001},
		{"a tolerance, capacity not known", search.Options{Max: 4096, Tolerance: 10}, affine(0.1, 1000), "11 44 176 704 2816! 1000 1011! | 1000 1000", 1011},
		{"a tolerance, a cliff where the line promised room", search.Options{Max: 4096, Tolerance: 10, Capacity: capacity}, kinds["cliff"](0.1, 0.5, 1000), "11 109 1667! 1656! 882 1269! 1075! 978 1026! 1002! 990 996 | 996 996", 1002},
		{"a tolerance, and the first size is all that fits", search.Options{Max: 512, Tolerance: 20, Capacity: capacity}, affine(0.1, 1), "21! 1 | 1 1", 21},
		{"next to nothing for a sample", search.Options{Max: 65536, Capacity: capacity}, affine(0, 60000), "1 256 33024 60000 60001! | 60000 60000", 60001},
		{"next to nothing for a sample, a tolerance", search.Options{Max: 65536, Tolerance: 9, Capacity: capacity}, affine(0, 60000), "10 2560 56515 60000 60010! | 60000 60000", 60010},
		{"a minimum, capacity not known", search.Options{Min: 100, Max: 1000}, affine(0.2, 300), "100 400! 250 300 301! | 300 300", 301},
		{"no peak for the first size", search.Options{Max: 65536, Capacity: capacity}, machine{
			need: affine(0.2, 200).need,
			peak: func(n int) float64 {
				if n == 1 {
					return 0
				}
				return affine(0.2, 200).need(n)
			},
		}, "1 4 16 140 200 201! | 200 200", 201},
		{"convex", search.Options{Max: 512, Capacity: capacity, Headroom: eight}, kinds["convex"](0.1, 1, 31), "1 8 89! 48! 28 33! 32! 30 31 | 31 31 30 30", 32},
		{"a cliff where the line promised room", search.Options{Max: 512, Capacity: capacity}, kinds["cliff"](0.1, 0.5, 31), "1 7 51! 29 40! 34! 31 32! | 31 31", 32},
		{"memory does not grow, then does", search.Options{Max: 512, Capacity: capacity}, kinds["plateau"](0.5, 0.02, 200), "1 2 14 149 331! 240! 194 217! 205! 199 202! | 199 199", 202},
		{"peaks that fall at first", search.Options{Max: 512, Capacity: capacity}, machine{
			need: affine(0.2, 200).need,
			peak: func(n int) float64 {
				if n == 1 {
					return 0.5
				}
				return affine(0.2, 200).need(n)
			},
		}, "1 2 8 117 200 201! | 200 200", 201},
		{"no peaks", search.Options{Max: 512, Headroom: eight}, kinds["without peaks"](0.1, 0, 31), "1 4 64! 34! 19 26 30 32! 31 | 31 31 28 28", 32},
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
