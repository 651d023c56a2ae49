package search_test

import (
	"context"
	"fmt"

	"headroom/memory"
	"headroom/search"
)

// The example is a model that takes 1.87 GB plus 0.717 GB per sample, on a
// device of 24 GB.
func ExampleLargest() {
	const capacity = 24_000_000_000
	try := func(_ context.Context, n int) (memory.Bytes, error) {
		need := memory.Bytes(1_870_000_000 + 717_000_000*n)
		fmt.Printf("try %d\n", n)
		if need > capacity {
			return 0, &memory.OutOfMemoryError{
				Requested: 300_000_000,
				Stats:     memory.Stats{Capacity: capacity, Reserved: capacity, Allocated: 23_900_000_000},
			}
		}
		return need, nil
	}
	r, err := search.Largest(context.Background(),
		search.Options{Max: 512, Capacity: capacity, Headroom: 0.08}, try)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%d fits, %d does not; train with %d\n", r.Fits, r.Fails, r.Recommended)
	fmt.Printf("%d probes, then %d to confirm\n", r.Searched, len(r.Probes)-r.Searched)
	fmt.Printf("%.2f GB and %.3f GB a sample\n", r.Line.Base/1e9, r.Line.PerSample/1e9)
	// Output:
	// try 1
	// try 8
	// try 26
	// try 30
	// try 31
	// try 30
	// try 30
	// try 28
	// try 28
	// 30 fits, 31 does not; train with 28
	// 5 probes, then 4 to confirm
	// 1.87 GB and 0.717 GB a sample
}

func ExampleEnough() {
	enough, fastest := search.Enough([]search.Speed{{N: 3, PerSecond: 157}, {N: 15, PerSecond: 274}, {N: 27, PerSecond: 296}, {N: 30, PerSecond: 296.2}})
	fmt.Printf("%d is the fastest, %d is enough\n", fastest, enough)
	// Output: 30 is the fastest, 27 is enough
}
