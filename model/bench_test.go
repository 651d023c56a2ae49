package model

import (
	"testing"

	"headroom/memory"
)

// BenchmarkStep measures one step of a model small enough for a laptop: 2
// layers of width 64, 4 heads, 64 positions, 32 samples.
func BenchmarkStep(b *testing.B) {
	s := tiny(GPT)
	s.spec.Width, s.spec.Heads, s.spec.Dropout = 64, 4, 0
	s.set = text{n: 500, tokens: 64, classes: 256}
	d, err := openDevice(memory.GiB)
	if err != nil {
		b.Fatal(err)
	}
	tr, err := New(d, s.spec, s.set)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = tr.Close() }()
	steps(b, tr, 1, plan(32, 8))
	for b.Loop() {
		steps(b, tr, 1, plan(32, 8))
	}
	b.ReportMetric(float64(tr.Stats().Peak)/float64(memory.MiB), "MiB-peak")
}
