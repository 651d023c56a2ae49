package configs

import "strings"

// nearest returns the candidate with the smallest edit distance to word. It compares
// each candidate as a whole and by its last part, so that "lr" is near "optimizer.lr".
// It allows one edit for every three letters of word, but always at least one. If no
// candidate is that near, it returns "".
func nearest(word string, candidates []string) string {
	word = strings.ToLower(word)
	best, least := "", 0
	try := func(candidate, a, b string, handicap int) {
		d := distance(a, b)
		if d <= max(1, len(a)/3) && (best == "" || 2*d+handicap < least) {
			best, least = candidate, 2*d+handicap
		}
	}
	for _, c := range candidates {
		try(c, word, c, 0)
		if _, tail, ok := strings.Cut(c, "."); ok {
			// With this handicap, a whole name with one slip beats an exact last part.
			try(c, word[strings.LastIndexByte(word, '.')+1:], tail, 3)
		}
	}
	return best
}

// distance returns the smallest number of edits that turn a into b. An edit inserts,
// deletes or replaces a letter, or swaps two neighbours (optimal string alignment).
func distance(a, b string) int {
	before, above := []int(nil), make([]int, len(b)+1)
	for j := range above {
		above[j] = j
	}
	for i := range len(a) {
		row := make([]int, len(b)+1)
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			row[j+1] = min(above[j]+cost, above[j+1]+1, row[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, above = above, row
	}
	return above[len(b)]
}
