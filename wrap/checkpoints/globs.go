package checkpoints

import (
	"slices"
	"strings"
)

// patternsMeet reports whether two patterns of paths, in the syntax of [path.Match], can match
// the same path, or one of them a path in a folder that the other matches.
func patternsMeet(a, b string) bool {
	as, bs := strings.Split(a, "/"), strings.Split(b, "/")
	for i := range min(len(as), len(bs)) {
		if !namesMeet(symbols(as[i]), symbols(bs[i])) {
			return false
		}
	}
	return true
}

// symbol stands for a part of a name in a pattern: any number of characters, or one character
// of a set.
type symbol struct {
	star   bool
	ranges [][2]rune // the set
	except bool      // the set is all characters that are not in ranges
}

func (s symbol) has(r rune) bool {
	in := slices.ContainsFunc(s.ranges, func(lh [2]rune) bool { return lh[0] <= r && r <= lh[1] })
	return in != s.except && r != '/' && r >= 0
}

// symbols takes a pattern of a name apart. A pattern that is not valid matches nothing, and it
// does not matter what becomes of it.
func symbols(pattern string) (all []symbol) {
	rest := []rune(pattern)
	next := func() (r rune) {
		if len(rest) > 1 && rest[0] == '\\' {
			rest = rest[1:]
		}
		if len(rest) > 0 {
			r, rest = rest[0], rest[1:]
		}
		return r
	}
	for len(rest) > 0 {
		switch rest[0] {
		case '*':
			all, rest = append(all, symbol{star: true}), rest[1:]
		case '?':
			all, rest = append(all, symbol{except: true}), rest[1:]
		case '[':
			rest = rest[1:]
			set := symbol{except: len(rest) > 0 && rest[0] == '^'}
			if set.except {
				rest = rest[1:]
			}
			for first := true; len(rest) > 0 && (first || rest[0] != ']'); first = false {
				low := next()
				high := low
				if len(rest) > 0 && rest[0] == '-' {
					rest = rest[1:]
					high = next()
				}
				set.ranges = append(set.ranges, [2]rune{low, high})
			}
			rest = rest[min(1, len(rest)):]
			all = append(all, set)
		default:
			r := next()
			all = append(all, symbol{ranges: [][2]rune{{r, r}}})
		}
	}
	return all
}

// shares reports whether two sets have a character in common. If they have, they have one at
// the end of a range, or next to one, or one that is in no range at all.
func (s symbol) shares(other symbol) bool {
	for _, lh := range append(slices.Concat(s.ranges, other.ranges), [2]rune{'x', '\U0010FFFE'}) {
		for _, r := range []rune{lh[0] - 1, lh[0], lh[1], lh[1] + 1} {
			if s.has(r) && other.has(r) {
				return true
			}
		}
	}
	return false
}

// namesMeet reports whether some name matches both patterns.
func namesMeet(a, b []symbol) bool {
	if len(a) > 0 && a[0].star {
		a, b = b, a
	}
	switch {
	case len(b) > 0 && b[0].star:
		for skip := range len(a) + 1 { // what the star stands for; a star in a can stand for nothing
			if namesMeet(a[skip:], b[1:]) {
				return true
			}
		}
		return false
	case len(a) == 0 || len(b) == 0:
		return len(a) == len(b)
	}
	return a[0].shares(b[0]) && namesMeet(a[1:], b[1:])
}
