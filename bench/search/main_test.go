package main

import (
	"slices"
	"strings"
	"testing"
)

// TestCurvesFitUpToTheirLimit checks that the limit of each curve is the largest
// size that fits; otherwise the comparison would mean nothing.
func TestCurvesFitUpToTheirLimit(t *testing.T) {
	for _, c := range draw() {
		if c.limit < 2 || c.limit > most || c.need(c.limit) > 1 || c.need(c.limit+1) <= 1 {
			t.Errorf("%s, limit %d: needs %.3f, one more %.3f", c.kind, c.limit, c.need(c.limit), c.need(c.limit+1))
		}
	}
}

// TestCompare checks that doubling and bisection is exact on every curve, that
// search.Largest stays within its bounds, and that two runs agree.
func TestCompare(t *testing.T) {
	rows, err := compare(draw())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		if r.Method == "doubling, then bisection" && (r.Exact != 1 || r.Short != 0) {
			t.Errorf("%+v", r)
		}
		if r.Curve == "affine" && r.Method == "search.Largest" && (r.Exact != 1 || r.Worst > 5 || r.WorstFailed > 1) {
			t.Errorf("%+v", r)
		}
		if r.Method == "search.Largest" && (r.WorstShort > 0.02 || r.Worst > 11) {
			t.Errorf("%+v", r)
		}
	}
	again, err := compare(draw())
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(rows, again) {
		t.Error("two runs differ")
	}
	if text := (report{Rows: rows}).markdown(); strings.Count(text, "\n| ") != len(rows)+2 { // each of the two tables has a heading
		t.Errorf("table:\n%s", text)
	}
}

func BenchmarkCompare(b *testing.B) {
	curves := draw()
	for b.Loop() {
		if _, err := compare(curves); err != nil {
			b.Fatal(err)
		}
	}
}

// TestShares checks that with noise five probes are sometimes not enough, and
// that the number of probes stays within bounds.
func TestShares(t *testing.T) {
	all, err := shares()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		if s.Enough <= 0.1 || s.Enough >= 1 || s.Probes > 10 || s.Worst > 18 {
			t.Errorf("%+v", s)
		}
	}
}
