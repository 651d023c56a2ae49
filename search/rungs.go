package search

// resolution sets the distance between rungs, which are the sizes that the search
// distinguishes. The distance is 1/resolution of the size, but at least 1. The search
// ends once the largest size that fits and the smallest that does not are one rung apart,
// unless the line through the measured peaks predicts exactly where the limit lies
// between them.
const resolution = 50

// up returns the next rung above n. Sizes up to 2·resolution have a rung each.
func up(n int) int { return n + max(1, n/resolution) }

// down returns a size from which up leads to n or beyond: the lowest such size, or the
// size above that one.
func down(n int) int { return n - max(1, n/(resolution+1)) }

// ahead returns the size that is the given number of rungs above n, or end if that is
// nearer.
func ahead(n, rungs, end int) int {
	for ; rungs > 0 && n < end; rungs-- {
		n = up(n)
	}
	return min(n, end)
}

// back returns the size that is the given number of rungs below n, or end if that is
// nearer.
func back(n, rungs, end int) int {
	for ; rungs > 0 && n > end; rungs-- {
		n = down(n)
	}
	return max(n, end)
}

// between returns the number of rungs from lo to hi.
func between(lo, hi int) (rungs int) {
	for ; lo < hi; lo = up(lo) {
		rungs++
	}
	return rungs
}
