// Package words writes numbers, shares and durations as people read them, in reports and
// their charts. Its functions are pure.
package words

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Count returns a whole number as text with separators: 12,800.
func Count[N int | int64](n N) string {
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

// Plural returns a number with its noun: "1 step", "2 steps".
func Plural(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return Count(n) + " " + what
}

// Span returns a range in words: "step 7" or "steps 7 to 9".
func Span(what string, from, to int) string {
	if from >= to {
		return fmt.Sprintf("%s %s", what, Count(to))
	}
	return fmt.Sprintf("%ss %s to %s", what, Count(from), Count(to))
}

// Number returns v as text with three significant digits, and NaN and infinities in
// words.
func Number(v float64) string {
	switch {
	case math.IsNaN(v):
		return "not a number"
	case math.IsInf(v, 0):
		return "infinite"
	case math.Abs(v) >= 1000:
		return Count(int64(math.Round(v)))
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

// Percent returns a fraction of 1 as a percentage.
func Percent(share float64) string {
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

// Lasting returns a duration as text, in its two largest units.
func Lasting(d time.Duration) string {
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

// Seconds is [Lasting] for a number of seconds.
func Seconds(s float64) string {
	return Lasting(time.Duration(s * float64(time.Second)))
}
