// Package spelling finds what a user probably meant by a word that is not known. It is pure.
package spelling

import "strings"

// Nearest returns the candidate that word is most probably a slip of: the one with the
// smallest edit distance. One edit is allowed for every three letters of word, but always at
// least one, unless that would leave nothing of the word. It returns "" if no candidate is that near. The first of several that are
// equally near wins. Capital letters in word count as small ones.
func Nearest(word string, candidates []string) string {
	best := guess{}
	for _, c := range candidates {
		best.try(c, strings.ToLower(word), c, 0)
	}
	return best.candidate
}

// NearestKey is [Nearest] for names of several parts, such as "optimizer.lr". It compares each
// candidate as a whole and without its first part, so that "lr" is near "optimizer.lr".
func NearestKey(word string, candidates []string) string {
	word = strings.ToLower(word)
	last := word[strings.LastIndexByte(word, '.')+1:]
	best := guess{}
	for _, c := range candidates {
		best.try(c, word, c, 0)
		if _, tail, ok := strings.Cut(c, "."); ok {
			// With this handicap, a whole name with one slip beats an exact last part.
			best.try(c, last, tail, 3)
		}
	}
	return best.candidate
}

// guess is the best candidate so far.
type guess struct {
	candidate string
	cost      int // twice the edits, and the handicap
}

// try takes a candidate if word is near enough to name, and nearer than the best so far.
func (g *guess) try(candidate, word, name string, handicap int) {
	edits, allowed := distance(word, name), min(max(1, len(word)/3), len(word)-1)
	if cost := 2*edits + handicap; edits <= allowed && (g.candidate == "" || cost < g.cost) {
		g.candidate, g.cost = candidate, cost
	}
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
