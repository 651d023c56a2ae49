package words

import (
	"math"
	"testing"
)

func TestFormat(t *testing.T) {
	tests := []struct{ got, want string }{
		{Count(0), "0"}, {Count(999), "999"}, {Count(1000), "1,000"}, {Count(-1234567), "−1,234,567"},
		{Plural(1, "step"), "1 step"}, {Plural(2000, "step"), "2,000 steps"},
		{Span("step", 3, 3), "step 3"}, {Span("step", 3, 5), "steps 3 to 5"},
		{Number(0), "0"}, {Number(3.14159), "3.14"}, {Number(99.96), "100"}, {Number(50), "50"}, {Number(12345), "12,345"}, {Number(0.01234), "0.0123"}, {Number(-0.41017), "-0.41"}, {Number(0.9996), "1"},
		{Number(2e-5), "2.0e-05"}, {Number(math.NaN()), "not a number"}, {Number(math.Inf(1)), "infinite"},
		{Percent(0.196), "20 %"}, {Percent(0.0123), "1.2 %"}, {Percent(0.0001), "< 0.1 %"}, {Percent(0), "0 %"}, {Percent(math.NaN()), "–"},
		{Seconds(0), "0 s"}, {Seconds(0.0421), "42 ms"}, {Seconds(6.61), "6.6 s"}, {Seconds(38.2), "38 s"},
		{Seconds(272.7), "4 min 33 s"}, {Seconds(1800), "30 min"}, {Seconds(30439), "8 h 27 min"}, {Seconds(3 * 86400), "3 d 0 h"},
	}
	for _, test := range tests {
		if test.got != test.want {
			t.Errorf("got %q, want %q", test.got, test.want)
		}
	}
}
