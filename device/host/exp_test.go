package host

import (
	"math"
	"testing"

	"headroom/device"
)

func TestExp(t *testing.T) {
	worst := 0.0
	for x := float32(-87.3); x < 88.3; x += 0.00173 {
		want := math.Exp(float64(x))
		worst = max(worst, math.Abs(float64(exp(x))-want)/want)
	}
	if !(worst < 2e-7) {
		t.Errorf("exp is off by %.3g relative", worst)
	}
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, c := range []struct{ x, want float32 }{{0, 1}, {-88, 0}, {-inf, 0}, {89, inf}, {inf, inf}} {
		if got := exp(c.x); got != c.want {
			t.Errorf("exp(%v) = %v, want %v", c.x, got, c.want)
		}
	}
	if got := exp(nan); got == got {
		t.Errorf("exp(NaN) = %v", got)
	}
}

// TestNaNComesThrough: a NaN in an operand must give NaN in the result, because
// a trainer recognises a diverged run by its NaN.
func TestNaNComesThrough(t *testing.T) {
	for _, act := range []device.DType{device.F32, device.BF16} {
		t.Run(act.String(), func(t *testing.T) { nanComesThrough(t, act) })
	}
}

func nanComesThrough(t *testing.T, act device.DType) {
	k := newDesk(t, 1)
	k.act = act
	x, weights := k.randomAct(8), k.random(8)
	values := []float32{1, 2, float32(math.NaN()), 4, 5, 6, 7, 8}
	set := func() { k.d.Upload(x, values) }
	isNaN := func(name string, bits []uint32) {
		if v := math.Float32frombits(bits[0]); v == v {
			t.Errorf("%s: %v, want NaN", name, v)
		}
	}
	y, mean, rstd, loss := k.outAct(8), k.out(1), k.out(1), k.out(1)
	set()
	k.d.Copy(weights, x)
	k.d.Sum(loss, weights)
	isNaN("Sum", k.bits(loss))
	k.d.LayerNorm(y, mean, rstd, x, k.random(8), k.random(8), 1, 8, 1e-5)
	isNaN("LayerNorm", k.bits(y))
	k.d.GELU(y, x)
	isNaN("GELU", k.bits(y.View(2, 1)))
	k.d.CrossEntropy(loss, x, k.ints(1, 8), 1, 8, 1)
	isNaN("CrossEntropy", k.bits(loss))
}
