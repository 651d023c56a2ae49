package model

import (
	"math"
	"slices"
	"testing"

	"headroom/device"
)

func download(t testing.TB, tr *Trainer, x device.Tensor) []float32 {
	t.Helper()
	out := make([]float32, x.Len)
	if err := tr.dev.Download(out, x); err != nil {
		t.Fatal(err)
	}
	return out
}

// snapshot holds everything that a step may change.
type snapshot struct {
	weights  []float32
	moments  [][]float32
	step     int
	position int64
}

func capture(t testing.TB, tr *Trainer) snapshot {
	t.Helper()
	s := snapshot{weights: download(t, tr, tr.st.weights), step: tr.step, position: tr.position}
	for _, m := range tr.st.moments {
		s.moments = append(s.moments, download(t, tr, m))
	}
	return s
}

// same fails the test unless got and want agree bit for bit.
func same(t testing.TB, what string, got, want snapshot) {
	t.Helper()
	if got.step != want.step || got.position != want.position {
		t.Fatalf("%s: at step %d, position %d; want %d, %d", what, got.step, got.position, want.step, want.position)
	}
	if i := firstDifference(got.weights, want.weights); i >= 0 {
		t.Fatalf("%s: weight %d is %v, want %v to the bit", what, i, got.weights[i], want.weights[i])
	}
	for k := range want.moments {
		if i := firstDifference(got.moments[k], want.moments[k]); i >= 0 {
			t.Fatalf("%s: moment %d of weight %d is %v, want %v to the bit", what, k, i, got.moments[k][i], want.moments[k][i])
		}
	}
}

func firstDifference(a, b []float32) int {
	if len(a) != len(b) {
		return 0
	}
	return slices.IndexFunc(zip(a, b), func(p [2]float32) bool {
		return math.Float32bits(p[0]) != math.Float32bits(p[1])
	})
}

func zip(a, b []float32) [][2]float32 {
	out := make([][2]float32, len(a))
	for i := range a {
		out[i] = [2]float32{a[i], b[i]}
	}
	return out
}

// distance returns ‖a − b‖ / ‖b‖.
func distance(a, b []float32) float64 {
	var difference, size float64
	for i := range a {
		d := float64(a[i]) - float64(b[i])
		difference += d * d
		size += float64(b[i]) * float64(b[i])
	}
	return math.Sqrt(difference / size)
}
