package devicetest

import (
	"headroom/device"
)

// testSync checks that wrong data, unlike a wrong shape, is reported by Sync.
// Sync returns only the first of several errors, returns it once, and leaves
// the device usable.
func testSync(r *rig) {
	r.sync()
	for name, op := range r.wrongData() {
		op()
		err := r.d.Sync()
		if err == nil {
			r.Errorf("%s: Sync returned nil", name)
			continue
		}
		if again := r.d.Sync(); again != nil {
			r.Errorf("%s: a second Sync returned %v", name, again)
		}
	}
	wrong := r.wrongData()
	wrong["token too large"]()
	alone := r.d.Sync()
	wrong["token too large"]()
	wrong["target negative"]()
	if both := r.d.Sync(); both == nil || alone == nil || both.Error() != alone.Error() {
		r.Errorf("two failures: Sync returned %q, want the first, %q", both, alone)
	}
	r.usable()
}

// testSyncSkips checks that after a failure no operation changes weights until
// Sync has returned the error.
func testSyncSkips(r *rig) {
	x, y := r.inout(device.F32, []float64{1, 2, 3}), r.inout(r.act, []float64{1, 2, 3})
	grad := r.input(device.F32, []float64{1, 1, 1})
	m, v := r.inout(device.F32, make([]float64, 3)), r.inout(device.F32, make([]float64, 3))
	r.sync()
	r.wrongData()["target too large"]()
	r.d.Fill(x, 9)
	r.d.Add(x, grad)
	r.d.Add(y, grad)
	r.d.AdamW(x, grad, m, v, device.AdamW{LR: 1, Beta1: 0.9, Beta2: 0.9, Eps: 1e-8, GradScale: 1, Step: 1})
	r.d.SGD(x, grad, m, device.SGD{LR: 1, GradScale: 1})
	into := []float32{7, 7, 7}
	for _, t := range []device.Tensor{x, y} {
		if err := r.d.Download(into, t); err == nil {
			r.Errorf("a download of %v after a failure returned nil", t.DType)
		}
	}
	if r.d.Sync() == nil {
		r.Error("a download cleared the failure that Sync should return")
	}
	for _, t := range []device.Tensor{x, y} {
		for i, got := range r.read(t) {
			if got != float32(i+1) {
				r.Errorf("element %d of %v is %v: an operation after the failure was not skipped", i, t.DType, got)
			}
		}
	}
	r.usable()
}

// wrongData returns operations, by name, on operands that fit but contain a
// token or target out of range.
func (r *rig) wrongData() map[string]func() {
	s := device.Embed{B: 1, T: 3, C: 2, V: 4}
	table, place := r.inout(device.F32, make([]float64, 8)), r.inout(device.F32, make([]float64, 6))
	out := r.inout(device.F32, make([]float64, 6))
	loss, logits := r.inout(device.F32, make([]float64, 3)), r.inout(r.act, make([]float64, 12))
	embed := func(tok ...int32) func() {
		ids := r.ints(tok)
		return func() { r.d.Embed(out, ids, table, place, s) }
	}
	embedGrad := func(tok ...int32) func() {
		ids := r.ints(tok)
		return func() { r.d.EmbedGrad(table, place, out, ids, s) }
	}
	entropy := func(target ...int32) func() {
		ids := r.ints(target)
		return func() { r.d.CrossEntropy(loss, logits, ids, 3, 4, 1) }
	}
	return map[string]func(){
		"token too large":      embed(0, 3, 4),
		"token negative":       embed(-1, 0, 0),
		"token ignored":        embed(0, device.IgnoreIndex, 0),
		"token in gradient":    embedGrad(0, 0, 4),
		"negative in gradient": embedGrad(0, -100, 0),
		"target too large":     entropy(0, 4, device.IgnoreIndex),
		"target negative":      entropy(-1, 0, 0),
	}
}

// usable checks that the device still computes.
func (r *rig) usable() {
	r.Helper()
	x := r.inout(r.act, []float64{1, 2, 3})
	r.d.Add(x, r.input(r.act, []float64{10, 20, 30}))
	r.sync()
	for i, got := range r.read(x) {
		if want := float32(11 * (i + 1)); got != want {
			r.Errorf("afterwards an addition gives %v, not %v", got, want)
		}
	}
}
