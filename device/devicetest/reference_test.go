package devicetest

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"headroom/device"
)

// weighted returns a loss of the output y whose gradient with respect to y is
// dy.
func weighted(y, dy []float64) float64 {
	sum := 0.0
	for i, v := range y {
		sum += v * dy[i]
	}
	return sum
}

// wantSlope compares grad with the central differences of f with respect to
// every element of x.
func wantSlope(t *testing.T, name string, x, grad []float64, f func() float64) {
	t.Helper()
	const h = 1e-5
	for i := range x {
		at := x[i]
		x[i] = at + h
		up := f()
		x[i] = at - h
		down := f()
		x[i] = at
		slope := (up - down) / (2 * h)
		if !(math.Abs(slope-grad[i]) <= 1e-7*(1+math.Abs(slope))) {
			t.Errorf("%s[%d]: gradient %v, central difference %v", name, i, grad[i], slope)
		}
	}
}

func reals(rng *rand.Rand, n int) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = rng.NormFloat64()
	}
	return x
}

func testRNG(t *testing.T) *rand.Rand { return rand.New(rand.NewPCG(Seed(t), 0)) }

func TestReferenceGELU(t *testing.T) {
	x, dy := reals(testRNG(t), 50), make([]float64, 50)
	for i, v := range x {
		dy[i] = refGELUGrad(v)
	}
	wantSlope(t, "x", x, dy, func() float64 {
		sum := 0.0
		for _, v := range x {
			sum += refGELU(v)
		}
		return sum
	})
}

func TestReferenceLayerNorm(t *testing.T) {
	const cols, eps = 7, 1e-5
	rng := testRNG(t)
	x, dy, gamma, beta := reals(rng, 3*cols), reals(rng, 3*cols), reals(rng, cols), reals(rng, cols)
	for i := range x {
		x[i] += float64(i % 2 * 3) // away from rows of almost equal numbers, where differences are inexact
	}
	dx, dgamma, dbeta := refLayerNormGrad(dy, x, gamma, cols, eps)
	loss := func() float64 {
		y, _, _ := refLayerNorm(x, gamma, beta, cols, eps)
		return weighted(y, dy)
	}
	wantSlope(t, "x", x, dx, loss)
	wantSlope(t, "gamma", gamma, dgamma, loss)
	wantSlope(t, "beta", beta, dbeta, loss)
}

func TestReferenceAttention(t *testing.T) {
	s := device.Attention{B: 2, T: 5, H: 2, D: 3}
	rng := testRNG(t)
	qkv, dout := reals(rng, s.B*s.T*3*s.H*s.D), reals(rng, s.B*s.T*s.H*s.D)
	wantSlope(t, "qkv", qkv, refAttentionGrad(dout, qkv, s), func() float64 {
		out, _ := refAttention(qkv, s)
		return weighted(out, dout)
	})
}

// TestReferenceAttentionIsCausal: a position must not see later positions.
func TestReferenceAttentionIsCausal(t *testing.T) {
	s := device.Attention{B: 1, T: 4, H: 1, D: 2}
	qkv := reals(testRNG(t), 4*3*2)
	before, _ := refAttention(qkv, s)
	for part := range 3 {
		qkv[inQKV(s, 0, 0, 3, part, 0)] += 1
	}
	after, _ := refAttention(qkv, s)
	for i := range before {
		if last := i >= inOut(s, 0, 0, 3, 0); (before[i] == after[i]) == last {
			t.Errorf("element %d: %v, then %v after the last position changed", i, before[i], after[i])
		}
	}
}

func TestReferenceCrossEntropy(t *testing.T) {
	const classes, scale = 5, 0.3
	logits, target := reals(testRNG(t), 3*classes), []int32{4, device.IgnoreIndex, 0}
	_, grad := refCrossEntropy(logits, target, classes, scale)
	wantSlope(t, "logits", logits, grad, func() float64 {
		loss, _ := refCrossEntropy(logits, target, classes, scale)
		return scale * (loss[0] + loss[1] + loss[2])
	})
}

func TestReferenceEmbed(t *testing.T) {
	s := device.Embed{B: 2, T: 3, C: 2, V: 4}
	rng := testRNG(t)
	tok := []int32{1, 1, 3, 0, 1, 3}
	tokens, positions, dout := reals(rng, s.V*s.C), reals(rng, s.T*s.C), reals(rng, s.B*s.T*s.C)
	dtokens, dpositions := make([]float64, len(tokens)), make([]float64, len(positions))
	refEmbedGrad(dtokens, dpositions, dout, tok, s)
	loss := func() float64 { return weighted(refEmbed(tok, tokens, positions, s), dout) }
	wantSlope(t, "tokens", tokens, dtokens, loss)
	wantSlope(t, "positions", positions, dpositions, loss)
}

// TestReferenceMatMul checks the two gradients of a product. They are products
// too, with the shapes and transpositions that models use for them.
func TestReferenceMatMul(t *testing.T) {
	rng := testRNG(t)
	p := device.MatMul{M: 3, N: 4, K: 5}
	a, b, dc := reals(rng, 15), reals(rng, 20), reals(rng, 12)
	loss := func() float64 { return weighted(refMatMul(nil, a, b, p), dc) }
	wantSlope(t, "a", a, refMatMul(nil, dc, b, device.MatMul{M: 3, N: 5, K: 4, TransB: true}), loss)
	wantSlope(t, "b", b, refMatMul(nil, a, dc, device.MatMul{M: 5, N: 4, K: 3, TransA: true}), loss)
}

// TestLean: on average, numbers truncated to BF16 are too small in magnitude,
// while numbers rounded to BF16 are not.
func TestLean(t *testing.T) {
	x := reals(testRNG(t), 1000)
	cut := make([]float32, len(x))
	for i, v := range x {
		cut[i] = math.Float32frombits(math.Float32bits(float32(v)) &^ 0xffff)
	}
	if got := lean(cut, x); !(got < -2e-3 && got > -4e-3) {
		t.Errorf("numbers cut off lean by %v", got)
	}
	if got := lean(narrow(rounded(device.BF16, slices.Clone(x))), x); !(math.Abs(got) < 1e-6) {
		t.Errorf("rounded numbers lean by %v", got)
	}
	cut[3] = float32(math.NaN())
	if got := lean(cut, x); got == got {
		t.Errorf("NaN leans by %v", got)
	}
}

// TestDistance checks in particular that NaN and outputs of the wrong length
// count as far off.
func TestDistance(t *testing.T) {
	nan := float32(math.NaN())
	for _, c := range []struct {
		got  []float32
		want []float64
		off  bool
	}{
		{[]float32{1, 2}, []float64{1, 2}, false},
		{[]float32{1, nan}, []float64{1, 2}, true},
		{[]float32{nan, 2}, []float64{math.NaN(), 2}, true},
		{[]float32{1}, []float64{1, 2}, true},
		{[]float32{0, 0}, []float64{0, 0}, false},
		{[]float32{1e-3, 0}, []float64{0, 0}, true},
		{[]float32{1, float32(math.Inf(1))}, []float64{1, 2}, true},
	} {
		if off, _ := distance(c.got, c.want); (off <= 1e-5) == c.off {
			t.Errorf("distance of %v from %v is %v", c.got, c.want, off)
		}
	}
}
