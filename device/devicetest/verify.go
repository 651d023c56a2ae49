package devicetest

import (
	"math"
	"slices"
	"testing"

	"headroom/device"
)

// result is an output of an operation, together with the values that it should
// have.
type result struct {
	name string
	got  device.Tensor
	want []float64
	tol  float64
}

func (r *rig) forward(name string, got device.Tensor, want []float64) result {
	return result{name, got, want, r.tolerance(got).Forward}
}

func (r *rig) gradient(name string, got device.Tensor, want []float64) result {
	return result{name, got, want, r.tolerance(got).Gradient}
}

// exact returns a result whose values must match exactly.
func exact(name string, got device.Tensor, want []float64) result { return result{name, got, want, 0} }

// tolerance returns the rig's tolerance, or [Float32] for a result that a
// mixed-precision operation stores as F32.
func (r *rig) tolerance(got device.Tensor) Tolerance {
	if got.DType == device.F32 && r.act != device.F32 {
		return Float32
	}
	return r.tol
}

// verify runs a case on aligned operands and on unaligned ones, twice each.
// call places its operands on the rig that it receives, runs the operation and
// returns the results. It must place the same numbers each time.
func (r *rig) verify(name string, call func(r *rig) []result) {
	r.Run(name, func(t *testing.T) {
		for _, lead := range []int{guards, guards + 1} {
			sub := *r
			sub.T, sub.lead, sub.placed = t, lead, nil
			first := sub.once(call, true)
			second := sub.once(call, false)
			for i := range first {
				if at, same := sameBits(first[i], second[i]); !same {
					t.Errorf("output %d, element %d: %v at first, then %v for the same call", i, at, first[i][at], second[i][at])
				}
			}
		}
	})
}

func (r *rig) once(call func(r *rig) []result, compare bool) [][]float32 {
	defer r.freeAll()
	results := call(r)
	r.sync()
	outputs := make([][]float32, len(results))
	for i, one := range results {
		outputs[i] = r.read(one.got)
		if compare {
			r.near(one.name, outputs[i], one.want, one.tol)
			if one.got.DType == device.BF16 {
				r.fair(one.name, outputs[i], one.want)
			}
		}
	}
	r.intact()
	return outputs
}

// near checks that got is within tol of want, as measured by distance. A NaN
// fails the check.
func (r *rig) near(name string, got []float32, want []float64, tol float64) {
	r.Helper()
	if off, at := distance(got, want); !(off <= tol) {
		r.Errorf("%s (operands off by %d): relative error %.3g, allowed %.3g; largest at %d: %v, want %v",
			name, r.lead-guards, off, tol, at, got[at], want[at])
	}
}

// fair checks that BF16 results are rounded and not truncated. It checks
// nothing if there are fewer than 1000 results.
func (r *rig) fair(name string, got []float32, want []float64) {
	r.Helper()
	if len(want) < 1000 {
		return
	}
	if off := lean(got, want); !(math.Abs(off) <= 1e-3) {
		r.Errorf("%s (operands off by %d): off by %+.3g of its size on average, allowed 0.001", name, r.lead-guards, off)
	}
}

// lean returns the average error in the magnitudes of BF16 results, relative to
// their size: about -0.0026 if the results are truncated, and about 0 if they
// are rounded. It compares the results with want rounded to BF16, because
// rounding moves equal numbers in want in the same direction, and these errors
// would not average out.
func lean(got []float32, want []float64) float64 {
	var off, size float64
	for i, w := range rounded(device.BF16, slices.Clone(want)) {
		off += math.Copysign(1, w) * (float64(got[i]) - w)
		size += math.Abs(w)
	}
	if size == 0 {
		size = 1
	}
	return off / size
}

// distance returns ‖got−want‖/‖want‖, or ‖got‖ if want is 0, and the index of
// the largest difference.
func distance(got []float32, want []float64) (relative float64, most int) {
	if len(got) != len(want) {
		return math.Inf(1), 0
	}
	var off, norm, largest float64
	for i, w := range want {
		diff := math.Abs(float64(got[i]) - w)
		if !(diff <= largest) {
			largest, most = diff, i
		}
		off += diff * diff
		norm += w * w
	}
	if norm == 0 {
		norm = 1
	}
	return math.Sqrt(off / norm), most
}

// intact checks that nothing was written beside an operand or to an input.
func (r *rig) intact() {
	r.Helper()
	for i, o := range r.placed {
		if !o.whole.DType.Float() {
			continue
		}
		all := r.read(o.whole)
		for at, v := range all {
			inside := at - o.lead
			within := inside >= 0 && inside < o.view.Len
			if !within && v != guard {
				r.Errorf("operand %d of %d elements: element %d beside it was overwritten with %v", i, o.view.Len, inside, v)
				break
			}
			if within && o.input != nil && math.Float32bits(v) != math.Float32bits(o.input[inside]) {
				r.Errorf("operand %d: element %d of an input changed from %v to %v", i, inside, o.input[inside], v)
				break
			}
		}
	}
}

func sameBits(a, b []float32) (at int, same bool) {
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			return i, false
		}
	}
	return 0, true
}
