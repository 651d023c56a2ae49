package devicetest

import (
	"testing"

	"headroom/device"
	"headroom/memory"
)

// Opener opens a device that may hold capacity bytes. It fails or skips the
// test if it cannot. The suite closes the device.
type Opener func(t testing.TB, capacity memory.Bytes) device.Device

// Tolerance is how far results may be from the reference: ‖got−want‖/‖want‖.
type Tolerance struct {
	Forward  float64
	Gradient float64
}

// Float32 is the tolerance of a device that computes in IEEE single precision.
var Float32 = Tolerance{Forward: 1e-5, Gradient: 1e-5}

// suiteCapacity is enough for every shape of the suite.
const suiteCapacity = 64 * memory.MiB

// Run runs the whole suite as subtests of t.
func Run(t *testing.T, open Opener, tolerance Tolerance) {
	seed := pickSeed(t)
	for _, part := range []struct {
		name string
		test func(r *rig)
	}{
		{"MatMul", testMatMul}, {"Bias", testBias},
		{"Fill", testFill}, {"Add", testAdd}, {"GELU", testGELU}, {"Sum", testSum}, {"Copy", testCopy},
		{"Embed", testEmbed}, {"LayerNorm", testLayerNorm}, {"Attention", testAttention}, {"CrossEntropy", testCrossEntropy},
		{"AdamW", testAdamW}, {"SGD", testSGD},
		{"Dropout", testDropout}, {"DropoutEdge", testDropoutEdge}, {"DropoutCut", testDropoutCut}, {"DropoutRate", testDropoutRate},
		{"Shapes", testShapes}, {"Sync", testSync}, {"SyncSkips", testSyncSkips},
		{"Alignment", testAlignment}, {"Stats", testStats}, {"Reuse", testReuse}, {"EmptyCache", testEmptyCache},
		{"OutOfMemory", testOutOfMemory}, {"TooLarge", testTooLarge}, {"RandomAllocations", testRandomAllocations},
		{"WrongFree", testWrongFree}, {"CloseWithTensors", testCloseWithTensors},
	} {
		t.Run(part.name, func(t *testing.T) {
			d := open(t, suiteCapacity)
			r := newRig(t, d, seed, tolerance)
			defer r.close()
			part.test(r)
		})
	}
}
