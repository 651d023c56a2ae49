package devicetest

import (
	"slices"
	"testing"

	"headroom/device"
	"headroom/memory"
)

// Opener opens a device with a capacity of the given number of bytes. If it
// cannot, it fails or skips the test. The suite closes the device.
type Opener func(t testing.TB, capacity memory.Bytes) device.Device

// Tolerance holds the largest allowed distances of results from the reference,
// for forward operations and for gradients. The distance is ‖got−want‖/‖want‖.
type Tolerance struct {
	Forward  float64
	Gradient float64
}

// Float32 is the tolerance of a device that computes in IEEE single precision.
var Float32 = Tolerance{Forward: 1e-5, Gradient: 1e-5}

// suiteCapacity is enough memory for every shape in the suite.
const suiteCapacity = 64 * memory.MiB

// Run runs the whole suite as subtests of t, with operands of F32.
func Run(t *testing.T, open Opener, tolerance Tolerance) {
	run(t, open, device.F32, tolerance, slices.Concat(activations, others))
}

// RunMixed runs the part of the suite in which types matter as subtests of t,
// with BF16 wherever it is allowed, alone and together with F32. tolerance
// applies to results stored as BF16. It must be at least 1/256, the largest
// relative change that rounding makes. Results stored as F32 must be within
// [Float32], because sums are F32 whatever the operands are.
func RunMixed(t *testing.T, open Opener, tolerance Tolerance) {
	run(t, open, device.BF16, tolerance, slices.Concat(activations, []part{{"Rounding", testRounding}}))
}

type part struct {
	name string
	test func(r *rig)
}

// activations are the tests of the suite that may be run with BF16 operands.
var activations = []part{
	{"MatMul", testMatMul}, {"Bias", testBias}, {"Add", testAdd}, {"GELU", testGELU}, {"Copy", testCopy},
	{"LayerNorm", testLayerNorm}, {"Attention", testAttention}, {"CrossEntropy", testCrossEntropy},
	{"Dropout", testDropout}, {"DropoutEdge", testDropoutEdge}, {"DropoutCut", testDropoutCut}, {"DropoutRate", testDropoutRate},
	{"Shapes", testShapes}, {"Sync", testSync}, {"SyncSkips", testSyncSkips},
	{"Alignment", testAlignment}, {"Stats", testStats},
}

var others = []part{
	{"Fill", testFill}, {"Sum", testSum}, {"CopyInts", testCopyInts}, {"Embed", testEmbed}, {"AdamW", testAdamW}, {"SGD", testSGD},
	{"Reuse", testReuse}, {"EmptyCache", testEmptyCache},
	{"OutOfMemory", testOutOfMemory}, {"TooLarge", testTooLarge}, {"RandomAllocations", testRandomAllocations},
	{"WrongFree", testWrongFree}, {"CloseWithTensors", testCloseWithTensors},
}

func run(t *testing.T, open Opener, act device.DType, tolerance Tolerance, parts []part) {
	seed := Seed(t)
	for _, part := range parts {
		t.Run(part.name, func(t *testing.T) {
			d := open(t, suiteCapacity)
			r := newRig(t, d, seed, act, tolerance)
			defer r.close()
			part.test(r)
		})
	}
}
