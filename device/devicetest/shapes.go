package devicetest

import (
	"errors"
	"fmt"
	"testing"

	"headroom/device"
)

// wrongCall is an operation with one operand that does not fit.
type wrongCall struct {
	name string
	call func(d device.Device)
}

// testShapes calls every operation with each of its operands in turn too long,
// missing, or of a wrong type. Every call must panic with a *device.ShapeError,
// write nothing and leave the device usable.
func testShapes(r *rig) {
	on := canaries{r.inout(device.F32, r.random(device.F32, 64)), r.inout(r.act, r.random(r.act, 64)), r.ints(make([]int32, 64))}
	before, beforeAct := r.read(on.f32), r.read(on.act)
	for _, c := range on.wrongCalls() {
		r.Run(c.name, func(t *testing.T) {
			if err := panicOf(func() { c.call(r.d) }); !isShapeError(err) {
				t.Errorf("panicked with %v, want a *device.ShapeError", err)
			}
		})
	}
	r.sync()
	for _, c := range []struct {
		t      device.Tensor
		before []float32
	}{{on.f32, before}, {on.act, beforeAct}} {
		if at, same := sameBits(c.before, r.read(c.t)); !same {
			r.Errorf("a wrong call wrote to element %d of %v", at, c.t.DType)
		}
	}
	r.d.Fill(on.f32, 3)
	r.sync()
	if got := r.read(on.f32)[0]; got != 3 {
		r.Errorf("after wrong calls the device fills with %v, not 3", got)
	}
}

// canaries are tensors of 64 elements in which all operands lie, so that a
// write to any of them is found.
type canaries struct{ f32, act, i32 device.Tensor }

// fitting is an operand that fits, together with the types with which it would
// not fit.
type fitting struct {
	t     device.Tensor
	wrong []device.DType
}

// f returns n elements that must be F32.
func (c canaries) f(n int) fitting {
	return fitting{c.f32.View(0, n), []device.DType{device.I32, device.BF16}}
}

// either returns n elements of an activation that may be F32 or BF16.
func (c canaries) either(n int) fitting {
	return fitting{c.act.View(0, n), []device.DType{device.I32}}
}

// tied returns n elements of an activation whose type must be that of another operand.
func (c canaries) tied(n int) fitting {
	other := device.F32
	if c.act.DType == device.F32 {
		other = device.BF16
	}
	return fitting{c.act.View(0, n), []device.DType{device.I32, other}}
}

// product returns n elements for the result of a product, which is F32 or of
// the type of the factors.
func (c canaries) product(n int) fitting {
	if c.act.DType == device.F32 {
		return c.f(n)
	}
	return c.either(n)
}

// ids returns n integers.
func (c canaries) ids(n int) fitting {
	return fitting{c.i32.View(0, n), []device.DType{device.F32, device.BF16}}
}

// rightCall is an operation with operands that fit.
type rightCall struct {
	name string
	args []fitting
	call func(d device.Device, a []device.Tensor)
}

// wrongCalls returns, for every operation, calls in which one operand does not
// fit. It also returns the calls of wrongNumbers.
func (c canaries) wrongCalls() []wrongCall {
	calls := wrongNumbers(c)
	for _, o := range append(c.simpleCalls(), c.networkCalls()...) {
		for at, right := range o.args {
			for how, wrong := range spoil(right) {
				args := make([]device.Tensor, len(o.args))
				for i, a := range o.args {
					args[i] = a.t
				}
				args[at] = wrong
				calls = append(calls, wrongCall{fmt.Sprintf("%s,operand %d %s", o.name, at, how), func(d device.Device) { o.call(d, args) }})
			}
		}
	}
	return calls
}

func spoil(right fitting) map[string]device.Tensor {
	longer := right.t
	longer.Len++
	all := map[string]device.Tensor{"too long": longer, "missing": {}}
	for _, wrong := range right.wrong {
		other := right.t
		other.DType = wrong
		all[fmt.Sprintf("of %v", wrong)] = other
	}
	return all
}

func (c canaries) simpleCalls() []rightCall {
	f, either, tied, ids := c.f, c.either, c.tied, c.ids
	return []rightCall{
		{"MatMul", []fitting{c.product(6), tied(8), tied(12)}, func(d device.Device, a []device.Tensor) {
			d.MatMul(a[0], a[1], a[2], device.MatMul{M: 2, N: 3, K: 4})
		}},
		{"AddBias", []fitting{either(6), f(3)}, func(d device.Device, a []device.Tensor) { d.AddBias(a[0], a[1], 2, 3) }},
		{"BiasGrad", []fitting{f(3), either(6)}, func(d device.Device, a []device.Tensor) { d.BiasGrad(a[0], a[1], 2, 3) }},
		{"Add", []fitting{either(5), either(5)}, func(d device.Device, a []device.Tensor) { d.Add(a[0], a[1]) }},
		{"Copy", []fitting{either(5), either(5)}, func(d device.Device, a []device.Tensor) { d.Copy(a[0], a[1]) }},
		{"Upload", []fitting{either(5)}, func(d device.Device, a []device.Tensor) { d.Upload(a[0], make([]float32, 5)) }},
		{"UploadInts", []fitting{ids(5)}, func(d device.Device, a []device.Tensor) { d.UploadInts(a[0], make([]int32, 5)) }},
		{"Download", []fitting{either(5)}, func(d device.Device, a []device.Tensor) { _ = d.Download(make([]float32, 5), a[0]) }},
		{"GELU", []fitting{tied(5), tied(5)}, func(d device.Device, a []device.Tensor) { d.GELU(a[0], a[1]) }},
		{"GELUGrad", []fitting{tied(5), tied(5), tied(5)}, func(d device.Device, a []device.Tensor) { d.GELUGrad(a[0], a[1], a[2]) }},
		{"Dropout", []fitting{either(6), either(6), ids(2)}, func(d device.Device, a []device.Tensor) {
			d.Dropout(a[0], a[1], a[2], device.Dropout{P: 0.5, Each: 3})
		}},
		{"Sum", []fitting{f(1)}, func(d device.Device, a []device.Tensor) { d.Sum(a[0], c.f32) }},
		{"SumSquares", []fitting{f(1)}, func(d device.Device, a []device.Tensor) { d.SumSquares(a[0], c.f32) }},
		{"AdamW", []fitting{f(5), f(5), f(5), f(5)}, func(d device.Device, a []device.Tensor) {
			d.AdamW(a[0], a[1], a[2], a[3], device.AdamW{Step: 1})
		}},
		{"SGD", []fitting{f(5), f(5), f(5)}, func(d device.Device, a []device.Tensor) { d.SGD(a[0], a[1], a[2], device.SGD{}) }},
	}
}

func (c canaries) networkCalls() []rightCall {
	f, either, tied, ids := c.f, c.either, c.tied, c.ids
	embed, attention := device.Embed{B: 1, T: 2, C: 3, V: 4}, device.Attention{B: 1, T: 2, H: 2, D: 3}
	return []rightCall{
		{"Embed", []fitting{f(6), ids(2), f(12), f(6)}, func(d device.Device, a []device.Tensor) { d.Embed(a[0], a[1], a[2], a[3], embed) }},
		{"EmbedGrad", []fitting{f(12), f(6), f(6), ids(2)}, func(d device.Device, a []device.Tensor) {
			d.EmbedGrad(a[0], a[1], a[2], a[3], embed)
		}},
		{"LayerNorm", []fitting{either(6), f(2), f(2), either(6), f(3), f(3)}, func(d device.Device, a []device.Tensor) {
			d.LayerNorm(a[0], a[1], a[2], a[3], a[4], a[5], 2, 3, 1e-5)
		}},
		{"LayerNormGrad", []fitting{tied(6), f(3), f(3), tied(6), either(6), f(3), f(2), f(2)}, func(d device.Device, a []device.Tensor) {
			d.LayerNormGrad(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], 2, 3)
		}},
		{"Attention", []fitting{tied(12), f(4), tied(36)}, func(d device.Device, a []device.Tensor) { d.Attention(a[0], a[1], a[2], attention) }},
		{"AttentionGrad", []fitting{tied(36), f(4), tied(12), tied(36), tied(12), f(4)}, func(d device.Device, a []device.Tensor) {
			d.AttentionGrad(a[0], a[1], a[2], a[3], a[4], a[5], attention)
		}},
		{"CrossEntropy", []fitting{f(2), either(6), ids(2)}, func(d device.Device, a []device.Tensor) { d.CrossEntropy(a[0], a[1], a[2], 2, 3, 1) }},
	}
}

// wrongNumbers returns calls in which a parameter, a dimension or a length is
// wrong, while the types of the operands fit.
func wrongNumbers(c canaries) []wrongCall {
	n := func(count int) device.Tensor { return c.f32.View(0, count) }
	ids := func(count int) device.Tensor { return c.i32.View(0, count) }
	act := func(count int) device.Tensor { return c.act.View(0, count) }
	return []wrongCall{
		{"MatMul,beta 2", func(d device.Device) { d.MatMul(act(1), act(1), act(1), device.MatMul{M: 1, N: 1, K: 1, Beta: 2}) }},
		{"MatMul,negative", func(d device.Device) { d.MatMul(act(1), act(1), act(1), device.MatMul{M: -1, N: -1, K: -1}) }},
		{"Dropout,P 1", func(d device.Device) { d.Dropout(act(1), act(1), ids(1), device.Dropout{P: 1, Each: 1}) }},
		{"Embed,positions too short", func(d device.Device) { d.Embed(n(6), ids(2), n(12), n(3), device.Embed{B: 1, T: 2, C: 3, V: 4}) }},
		{"AdamW,step 0", func(d device.Device) { d.AdamW(n(1), n(1), n(1), n(1), device.AdamW{}) }},
	}
}

// panicOf returns the value that f panics with, as an error, or nil if f does
// not panic.
func panicOf(f func()) (err error) {
	defer func() {
		switch v := recover().(type) {
		case nil:
		case error:
			err = v
		default:
			err = fmt.Errorf("%v", v)
		}
	}()
	f()
	return nil
}

func isShapeError(err error) bool {
	var shape *device.ShapeError
	return errors.As(err, &shape)
}
