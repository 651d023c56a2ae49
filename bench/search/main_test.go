package main

import (
	"slices"
	"strings"
	"testing"
)

// The curves must be what their kinds say; otherwise the comparison means nothing.
func TestCurvesFitUpToTheirLimit(t *testing.T) {
	for _, c := range draw() {
		if c.limit < 2 || c.limit > most || c.need(c.limit) > 1 || c.need(c.limit+1) <= 1 {
			t.Errorf("%s, limit %d: needs %.3f, one more %.3f", c.kind, c.limit, c.need(c.limit), c.need(c.limit+1))
		}
	}
}

// Doubling and bisection is exact whatever the curve, and two runs agree.
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
	if text := (report{Rows: rows}).markdown(); strings.Count(text, "\n| ") != len(rows)+2 { // two tables have a heading each
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

// Noise costs probes, and the table says how many.
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
