package host

import (
	"testing"

	"headroom/device"
)

// TestOperands: an F32 operand is the tensor's memory itself and costs no
// allocation. The scratch of a BF16 operand is kept for the next operand of the
// same name, which may be smaller or larger.
func TestOperands(t *testing.T) {
	k := newDesk(t, 1)
	x, large, small := k.out(100), k.alloc(device.BF16, 100), k.alloc(device.BF16, 3)
	if n := testing.AllocsPerRun(10, func() { k.d.store(x, k.d.floats("Test", "x", x)) }); n != 0 {
		t.Errorf("an F32 operand costs %v allocations", n)
	}
	k.d.floats("Test", "x", x)[5] = 7
	values := k.d.floats("Test", "large", large)
	fill(values, 0x1.01p0) // between two BF16
	k.d.store(large, values)
	fill(values, -1)
	k.d.Copy(small, large.View(97, 3))
	for i, got := range k.d.floats("Test", "large", small) {
		if got != 1 {
			t.Errorf("element %d of what was stored is %v, want 1", i, got)
		}
	}
	if again := k.d.floats("Test", "large", large); &again[0] != &values[0] {
		t.Error("scratch of an operand was not kept")
	}
	if got := k.d.floats("Test", "x", x)[5]; got != 7 {
		t.Errorf("an F32 operand is not the memory: %v, want 7", got)
	}
}

// TestFailureLeavesBF16Alone: operations after a failure change no bit of their
// BF16 outputs.
func TestFailureLeavesBF16Alone(t *testing.T) {
	k := newDesk(t, 1)
	logits, loss := k.alloc(device.BF16, 6), k.out(2)
	k.d.Upload(logits, []float32{1, 2, 3, 4, 5, 6})
	before := k.bits(logits)
	k.d.CrossEntropy(loss, logits, k.ints(2, 1), 2, 3, 1)
	changed := k.bits(logits)
	if changed[0] == before[0] {
		t.Fatal("a loss left its logits alone")
	}
	target := k.ints(2, 1)
	k.d.UploadInts(target, []int32{0, 3})
	k.d.CrossEntropy(loss, logits, target, 2, 3, 1)
	k.d.Upload(logits, make([]float32, 6))
	if k.d.Sync() == nil {
		t.Fatal("a target of 3 of 3 classes is no failure")
	}
	for i, bits := range k.bits(logits) {
		if bits != changed[i] {
			t.Errorf("logit %d changed from %x to %x after the failure", i, changed[i], bits)
		}
	}
}
