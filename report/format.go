package report

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// count returns a whole number as text with separators: 12,800.
func count[N int | int64](n N) string {
	digits := strconv.FormatInt(int64(n), 10)
	sign := ""
	if n < 0 {
		sign, digits = "−", digits[1:]
	}
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return sign + digits
}

// plural returns a number with its noun: "1 step", "2 steps".
func plural(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return count(n) + " " + what
}

// span returns a range in words: "step 7" or "steps 7 to 9".
func span(what string, from, to int) string {
	if from >= to {
		return fmt.Sprintf("%s %s", what, count(to))
	}
	return fmt.Sprintf("%ss %s to %s", what, count(from), count(to))
}

// number returns v as text with three significant digits, and NaN and infinities in
// words.
func number(v float64) string {
	switch {
	case math.IsNaN(v):
		return "not a number"
	case math.IsInf(v, 0):
		return "infinite"
	case math.Abs(v) >= 1000:
		return count(int64(math.Round(v)))
	case v == 0:
		return "0"
	case math.Abs(v) < 0.001:
		return strconv.FormatFloat(v, 'e', 1, 64)
	case math.Abs(v) < 1:
		return trimmed(strconv.FormatFloat(v, 'f', 2-int(math.Floor(math.Log10(math.Abs(v)))), 64))
	}
	return trimmed(strconv.FormatFloat(v, 'f', 2-int(math.Log10(math.Abs(v))), 64))
}

func trimmed(s string) string {
	if !strings.Contains(s, ".") {
		return s
	}
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}

// clipped returns s if it takes at most limit bytes in HTML. Otherwise it returns as much
// of the start of s as fits, with … for the rest.
func clipped(s string, limit int) string {
	for i, c := range s {
		if limit -= weight(c); limit < 0 {
			return strings.TrimRight(s[:i], " ") + " …"
		}
	}
	return s
}

// weight returns how many bytes c takes in HTML.
func weight(c rune) int {
	if strings.ContainsRune(`<>&"'`, c) {
		return len("&#34;")
	}
	return len(string(c))
}

// percent returns a fraction of 1 as a percentage.
func percent(share float64) string {
	v := 100 * share
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return "–"
	case math.Abs(v) >= 10 || v == 0:
		return fmt.Sprintf("%.0f %%", v)
	case math.Abs(v) < 0.05:
		return "< 0.1 %"
	}
	return fmt.Sprintf("%.1f %%", v)
}

// lasting returns a duration as text, in its two largest units.
func lasting(d time.Duration) string {
	seconds := d.Seconds()
	switch {
	case seconds <= 0:
		return "0 s"
	case seconds < 0.95:
		return fmt.Sprintf("%.0f ms", max(1, 1000*seconds))
	case seconds < 9.95:
		return trimmed(fmt.Sprintf("%.1f", seconds)) + " s"
	case seconds < 59.5:
		return fmt.Sprintf("%.0f s", seconds)
	}
	minutes := int(math.Round(seconds / 60))
	switch {
	case seconds < 600:
		whole := int(math.Round(seconds))
		return fmt.Sprintf("%d min %d s", whole/60, whole%60)
	case minutes < 60:
		return fmt.Sprintf("%d min", minutes)
	case minutes < 48*60:
		return fmt.Sprintf("%d h %d min", minutes/60, minutes%60)
	}
	hours := int(math.Round(seconds / 3600))
	return fmt.Sprintf("%d d %d h", hours/24, hours%24)
}

func secondsLasting(s float64) string {
	return lasting(time.Duration(s * float64(time.Second)))
}
