package devicetest

import (
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"

	"headroom/device"
)

// rig is a device under test together with the state that a test needs.
// Failures of the rig itself end the test.
type rig struct {
	*testing.T
	d      device.Device
	rng    *rand.Rand
	act    device.DType // the type of activations, where an operation leaves a choice
	tol    Tolerance
	lead   int // number of elements before an operand in its larger tensor
	placed []*operand
	closed bool
}

// operand is a view within a larger tensor whose other elements must not
// change.
type operand struct {
	whole, view device.Tensor
	lead        int
	input       []float32 // the values that it must still hold; nil if the operation may write it
}

// guard is the value of the elements around every operand. It is not NaN, so
// that it can be compared with ==, and it can be stored as BF16.
const guard float32 = -0x1.ap92

// guards is the number of guard elements after each operand, and before each
// aligned operand. They take at least 512 bytes.
const guards = 256

// Seed returns the seed for a test's random numbers: the value of
// HEADROOM_SEED, or else a random seed, which it logs so that the run can be
// repeated. If HEADROOM_SEED is not a number, the test fails.
func Seed(t testing.TB) uint64 {
	text, set := os.LookupEnv("HEADROOM_SEED")
	if !set {
		seed := rand.Uint64()
		t.Logf("repeat with HEADROOM_SEED=%d", seed)
		return seed
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("HEADROOM_SEED: %v", err)
	}
	return seed
}

// newRig returns a rig for d. Its random numbers depend on the seed and the test's name,
// so that a test uses the same numbers when it is run alone as when it is run with
// others.
func newRig(t *testing.T, d device.Device, seed uint64, act device.DType, tol Tolerance) *rig {
	h := fnv.New64()
	h.Write([]byte(t.Name()))
	return &rig{T: t, d: d, rng: rand.New(rand.NewPCG(seed, h.Sum64())), act: act, tol: tol, lead: guards}
}

// close frees all tensors that the rig placed, checks that nothing remains allocated, and
// closes the device.
func (r *rig) close() {
	if r.closed {
		return
	}
	r.freeAll()
	if got := r.d.Stats().Allocated; got != 0 {
		r.Errorf("%v allocated after everything was freed", got)
	}
	if err := r.d.Close(); err != nil {
		r.Errorf("close: %v", err)
	}
}

func (r *rig) freeAll() {
	for _, o := range r.placed {
		r.d.Free(o.whole)
	}
	r.placed = nil
}

// random returns n numbers from a normal distribution, rounded to what t can hold.
func (r *rig) random(t device.DType, n int) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = r.rng.NormFloat64()
	}
	return rounded(t, x)
}

// rounded rounds x, in place, to values that a tensor of type t can hold, and
// returns it. The reference then computes with the same numbers as the device.
func rounded(t device.DType, x []float64) []float64 {
	for i, v := range x {
		x[i] = float64(float32(v))
		if t == device.BF16 {
			x[i] = float64(device.FromBF16(device.ToBF16(float32(v))))
		}
	}
	return x
}

// pair is a choice of types for an operation's output and its input.
type pair struct{ out, in device.DType }

// pairs returns the choices of types for operands that need not have the same
// type.
func (r *rig) pairs() []pair {
	if r.act == device.F32 {
		return []pair{{device.F32, device.F32}}
	}
	return []pair{{r.act, r.act}, {r.act, device.F32}, {device.F32, r.act}, {device.F32, device.F32}}
}

func (p pair) String() string { return fmt.Sprintf("%v from %v", p.out, p.in) }

// steady makes numbers positive if they are summed into fewer than 16 outputs.
// A sum that happens to cancel would test the luck of the draw instead of the
// device.
func steady(outputs int, all ...[]float64) {
	if outputs >= 16 {
		return
	}
	for _, x := range all {
		for i := range x {
			x[i] = math.Abs(x[i])
		}
	}
}

// indices returns n numbers in [0, below).
func (r *rig) indices(n, below int) []int32 {
	x := make([]int32, n)
	for i := range x {
		x[i] = int32(r.rng.IntN(below))
	}
	return x
}

// input returns a tensor with the values x, which type t must be able to hold.
// Operations must not change the tensor.
func (r *rig) input(t device.DType, x []float64) device.Tensor {
	r.Helper()
	o := r.place(t, narrow(x))
	o.input = narrow(x)
	return o.view
}

// inout returns a tensor with the values x, which type t must be able to hold.
// Operations may change the tensor.
func (r *rig) inout(t device.DType, x []float64) device.Tensor {
	r.Helper()
	return r.place(t, narrow(x)).view
}

// output returns a tensor of n elements, all NaN.
func (r *rig) output(t device.DType, n int) device.Tensor {
	r.Helper()
	return r.place(t, slices.Repeat([]float32{float32(math.NaN())}, n)).view
}

func (r *rig) place(t device.DType, x []float32) *operand {
	r.Helper()
	o := &operand{whole: r.alloc(r.lead+len(x)+guards, t), lead: r.lead}
	o.view = o.whole.View(r.lead, len(x))
	all := slices.Repeat([]float32{guard}, o.whole.Len)
	copy(all[r.lead:], x)
	r.d.Upload(o.whole, all)
	r.placed = append(r.placed, o)
	return o
}

// ints returns an I32 tensor with the values x.
func (r *rig) ints(x []int32) device.Tensor {
	r.Helper()
	t := r.alloc(len(x), device.I32)
	r.d.UploadInts(t, x)
	r.placed = append(r.placed, &operand{whole: t})
	return t
}

func (r *rig) alloc(n int, dtype device.DType) device.Tensor {
	r.Helper()
	t, err := r.d.Alloc(n, dtype)
	if err != nil {
		r.Fatalf("alloc %d: %v", n, err)
	}
	return t
}

func (r *rig) read(t device.Tensor) []float32 {
	r.Helper()
	x := make([]float32, t.Len)
	if err := r.d.Download(x, t); err != nil {
		r.Fatalf("download: %v", err)
	}
	return x
}

func (r *rig) sync() {
	r.Helper()
	if err := r.d.Sync(); err != nil {
		r.Fatalf("sync: %v", err)
	}
}

func narrow(x []float64) []float32 {
	y := make([]float32, len(x))
	for i, v := range x {
		y[i] = float32(v)
	}
	return y
}
