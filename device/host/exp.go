package host

import "math"

// exp returns eˣ with a relative error below 2e-7, in two thirds of the time
// that math.Exp takes. It returns 0 for x below -87.33, where eˣ is smaller
// than any normal float32, and +Inf for x above 88.3.
//
// It writes x = k·ln 2 + r with |r| ≤ ln 2 / 2 and sums the Taylor series of eʳ
// to r⁷/7!; the remainder is below r⁸/8! < 6e-9. It stays in float32 because,
// in the code that the compiler emits, a conversion to float64 depends on the
// previous content of its register. With such conversions, a loop could not
// work on several elements at once.
func exp(x float32) float32 {
	const (
		least, most = -87.33, 88.3
		// Adding 1.5·2²³ rounds a small number to an integer, which is then in the
		// low bits of the sum.
		rounder = 0x1.8p23
		// ln 2 in two parts. The first has so few bits that its product with k is
		// exact.
		ln2High, ln2Low = 0x1.62e4p-1, 0x1.7f7d1cp-20
	)
	if !(x >= least && x <= most) {
		return outside(x)
	}
	shifted := x*math.Log2E + rounder
	k := shifted - rounder
	r := x - k*ln2High - k*ln2Low
	r2 := r * r
	series := 1 + r + r2*(1./2+r*(1./6)+r2*(1./24+r*(1./120)+r2*(1./720+r*(1./5040))))
	return series * math.Float32frombits((math.Float32bits(shifted)+127)<<23)
}

func outside(x float32) float32 {
	switch {
	case x != x:
		return x
	case x > 0:
		return float32(math.Inf(1))
	}
	return 0
}

// expRow computes dst = exp(x·scale − shift) and returns the sum of dst.
func expRow(dst, x []float32, scale, shift float32) (sum float64) {
	x = x[:len(dst)]
	for i, v := range x {
		e := exp(v*scale - shift)
		dst[i] = e
		sum += float64(e)
	}
	return sum
}
