package search

// Speed is how fast a size trains.
type Speed struct {
	N         int     `json:"n"`          // samples in a micro-batch
	PerSecond float64 `json:"per_second"` // samples trained per second
}

// NearlyFastest is the share of the best speed that [Enough] is willing to give up.
const NearlyFastest = 0.01

// Enough returns the smallest size whose speed is within 1 % of the best, and the
// fastest size. Speed levels off long before memory ends, so a size well below the
// largest that fits often costs nothing and leaves room. If several sizes are equally
// fast, the smallest of them counts as the fastest. Speeds that are not above 0 are
// ignored; if there are no others, both results are 0. The order of the speeds does not
// matter.
func Enough(speeds []Speed) (enough, fastest int) {
	var best float64
	for _, s := range speeds {
		if s.PerSecond > best || s.PerSecond == best && s.N < fastest {
			best, fastest = s.PerSecond, s.N
		}
	}
	enough = fastest
	for _, s := range speeds {
		if s.PerSecond > 0 && s.PerSecond >= (1-NearlyFastest)*best {
			enough = min(enough, s.N)
		}
	}
	return enough, fastest
}

// MuchFaster is the lead in speed that the fastest size must have over another size in
// order to replace it, as a share of the other size's speed. Timings of a few steps may
// differ by up to that much by chance.
const MuchFaster = 0.05

// Better returns the smallest size that is fast enough, according to [Enough], if the
// fastest size is much faster than n. It returns 0 if n is fast enough or was not
// timed.
func Better(speeds []Speed, n int) int {
	enough, fastest := Enough(speeds)
	own := PerSecond(speeds, n)
	if !(own > 0) || PerSecond(speeds, fastest) <= (1+MuchFaster)*own {
		return 0
	}
	return enough
}

// PerSecond returns the speed of size n in samples per second, or 0 if n was not timed.
func PerSecond(speeds []Speed, n int) float64 {
	for _, s := range speeds {
		if s.N == n {
			return s.PerSecond
		}
	}
	return 0
}
