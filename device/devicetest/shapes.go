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

// testShapes makes every operation with each of its operands too short, of the
// wrong type, and missing: all panic with *device.ShapeError, write nothing and
// leave the device as it was.
func testShapes(r *rig) {
	canary := r.inout(r.random(64))
	before := r.read(canary)
	for _, c := range r.wrongCalls(canary) {
		r.Run(c.name, func(t *testing.T) {
			if err := panicOf(func() { c.call(r.d) }); !isShapeError(err) {
				t.Errorf("panicked with %v, want a *device.ShapeError", err)
			}
		})
	}
	r.sync()
	if at, same := sameBits(before, r.read(canary)); !same {
		r.Errorf("a wrong call wrote to element %d", at)
	}
	r.d.Fill(canary, 3)
	r.sync()
	if got := r.read(canary)[0]; got != 3 {
		r.Errorf("after wrong calls the device fills with %v, not 3", got)
	}
}

// wrongCalls takes the right operands of every operation and spoils one at a
// time. All operands lie in f, which has 64 elements, and in i.
func (r *rig) wrongCalls(f device.Tensor) []wrongCall {
	i := r.ints(make([]int32, 64))
	n := func(count int) device.Tensor { return f.View(0, count) }
	ids := func(count int) device.Tensor { return i.View(0, count) }
	embed, attention := device.Embed{B: 1, T: 2, C: 3, V: 4}, device.Attention{B: 1, T: 2, H: 2, D: 3}
	drop := device.Dropout{P: 0.5, Each: 3}
	var calls []wrongCall
	for _, o := range []struct {
		name string
		args []device.Tensor
		call func(d device.Device, a []device.Tensor)
	}{
		{"MatMul", []device.Tensor{n(6), n(8), n(12)}, func(d device.Device, a []device.Tensor) {
			d.MatMul(a[0], a[1], a[2], device.MatMul{M: 2, N: 3, K: 4})
		}},
		{"AddBias", []device.Tensor{n(6), n(3)}, func(d device.Device, a []device.Tensor) { d.AddBias(a[0], a[1], 2, 3) }},
		{"BiasGrad", []device.Tensor{n(3), n(6)}, func(d device.Device, a []device.Tensor) { d.BiasGrad(a[0], a[1], 2, 3) }},
		{"Add", []device.Tensor{n(5), n(5)}, func(d device.Device, a []device.Tensor) { d.Add(a[0], a[1]) }},
		{"Copy", []device.Tensor{n(5), n(5)}, func(d device.Device, a []device.Tensor) { d.Copy(a[0], a[1]) }},
		{"Upload", []device.Tensor{n(5)}, func(d device.Device, a []device.Tensor) { d.Upload(a[0], make([]float32, 5)) }},
		{"UploadInts", []device.Tensor{ids(5)}, func(d device.Device, a []device.Tensor) { d.UploadInts(a[0], make([]int32, 5)) }},
		{"Download", []device.Tensor{n(5)}, func(d device.Device, a []device.Tensor) { _ = d.Download(make([]float32, 5), a[0]) }},
		{"GELU", []device.Tensor{n(5), n(5)}, func(d device.Device, a []device.Tensor) { d.GELU(a[0], a[1]) }},
		{"GELUGrad", []device.Tensor{n(5), n(5), n(5)}, func(d device.Device, a []device.Tensor) { d.GELUGrad(a[0], a[1], a[2]) }},
		{"Dropout", []device.Tensor{n(6), n(6), ids(2)}, func(d device.Device, a []device.Tensor) { d.Dropout(a[0], a[1], a[2], drop) }},
		{"Embed", []device.Tensor{n(6), ids(2), n(12), n(6)}, func(d device.Device, a []device.Tensor) { d.Embed(a[0], a[1], a[2], a[3], embed) }},
		{"EmbedGrad", []device.Tensor{n(12), n(6), n(6), ids(2)}, func(d device.Device, a []device.Tensor) {
			d.EmbedGrad(a[0], a[1], a[2], a[3], embed)
		}},
		{"LayerNorm", []device.Tensor{n(6), n(2), n(2), n(6), n(3), n(3)}, func(d device.Device, a []device.Tensor) {
			d.LayerNorm(a[0], a[1], a[2], a[3], a[4], a[5], 2, 3, 1e-5)
		}},
		{"LayerNormGrad", []device.Tensor{n(6), n(3), n(3), n(6), n(6), n(3), n(2), n(2)}, func(d device.Device, a []device.Tensor) {
			d.LayerNormGrad(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], 2, 3)
		}},
		{"Attention", []device.Tensor{n(12), n(4), n(36)}, func(d device.Device, a []device.Tensor) { d.Attention(a[0], a[1], a[2], attention) }},
		{"AttentionGrad", []device.Tensor{n(36), n(4), n(12), n(36), n(12), n(4)}, func(d device.Device, a []device.Tensor) {
			d.AttentionGrad(a[0], a[1], a[2], a[3], a[4], a[5], attention)
		}},
		{"CrossEntropy", []device.Tensor{n(2), n(6), ids(2)}, func(d device.Device, a []device.Tensor) { d.CrossEntropy(a[0], a[1], a[2], 2, 3, 1) }},
		{"Sum", []device.Tensor{n(1)}, func(d device.Device, a []device.Tensor) { d.Sum(a[0], f) }},
		{"SumSquares", []device.Tensor{n(1)}, func(d device.Device, a []device.Tensor) { d.SumSquares(a[0], f) }},
		{"AdamW", []device.Tensor{n(5), n(5), n(5), n(5)}, func(d device.Device, a []device.Tensor) {
			d.AdamW(a[0], a[1], a[2], a[3], device.AdamW{Step: 1})
		}},
		{"SGD", []device.Tensor{n(5), n(5), n(5)}, func(d device.Device, a []device.Tensor) { d.SGD(a[0], a[1], a[2], device.SGD{}) }},
	} {
		for at, right := range o.args {
			for how, wrong := range spoil(right) {
				args := append([]device.Tensor(nil), o.args...)
				args[at] = wrong
				calls = append(calls, wrongCall{fmt.Sprintf("%s,operand %d %s", o.name, at, how), func(d device.Device) { o.call(d, args) }})
			}
		}
	}
	return append(calls, wrongNumbers(n, ids)...)
}

func spoil(t device.Tensor) map[string]device.Tensor {
	longer, other := t, t
	longer.Len++
	other.DType = device.F32 + device.I32 - t.DType
	return map[string]device.Tensor{"too long": longer, "of the other type": other, "missing": {}}
}

// wrongNumbers are operands that fit one another but not the operation.
func wrongNumbers(n, ids func(int) device.Tensor) []wrongCall {
	return []wrongCall{
		{"MatMul,beta 2", func(d device.Device) { d.MatMul(n(1), n(1), n(1), device.MatMul{M: 1, N: 1, K: 1, Beta: 2}) }},
		{"MatMul,negative", func(d device.Device) { d.MatMul(n(1), n(1), n(1), device.MatMul{M: -1, N: -1, K: -1}) }},
		{"Dropout,P 1", func(d device.Device) { d.Dropout(n(1), n(1), ids(1), device.Dropout{P: 1, Each: 1}) }},
		{"Embed,positions too short", func(d device.Device) { d.Embed(n(6), ids(2), n(12), n(3), device.Embed{B: 1, T: 2, C: 3, V: 4}) }},
		{"AdamW,step 0", func(d device.Device) { d.AdamW(n(1), n(1), n(1), n(1), device.AdamW{}) }},
	}
}

// panicOf is what f panics with, as an error; nil if it returns.
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
