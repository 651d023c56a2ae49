package devicetest

import (
	"fmt"
	"math"
	"slices"

	"headroom/device"
)

func testEmbed(r *rig) {
	for _, s := range []device.Embed{
		{B: 1, T: 1, C: 1, V: 1}, {B: 1, T: 1, C: 17, V: 3}, {B: 3, T: 17, C: 65, V: 5}, {B: 17, T: 3, C: 3, V: 65},
		{B: 2, T: 65, C: 64, V: 257}, {B: 8, T: 64, C: 32, V: 2},
	} {
		longest := s.T + 2 // the table of positions may be longer than T
		tok, dout := r.indices(s.B*s.T, s.V), r.random(device.F32, s.B*s.T*s.C)
		tokens, positions := r.random(device.F32, s.V*s.C), r.random(device.F32, longest*s.C)
		out := refEmbed(tok, tokens, positions, s)
		dtokens, dpositions := append([]float64(nil), tokens...), append([]float64(nil), positions...)
		refEmbedGrad(dtokens, dpositions, dout, tok, s)
		r.verify(fmt.Sprintf("%+v", s), func(r *rig) []result {
			ids, to := r.ints(tok), r.output(device.F32, len(out))
			r.d.Embed(to, ids, r.input(device.F32, tokens), r.input(device.F32, positions), s)
			table, place := r.inout(device.F32, tokens), r.inout(device.F32, positions) // EmbedGrad adds to them
			r.d.EmbedGrad(table, place, r.input(device.F32, dout), ids, s)
			return []result{r.forward("out", to, out), r.gradient("dtokens", table, dtokens), r.gradient("dpositions", place, dpositions)}
		})
	}
}

func testLayerNorm(r *rig) {
	for _, shape := range rows {
		for _, types := range r.pairs() {
			r.layerNorm(types, shape[0], shape[1])
		}
	}
}

// layerNorm tests LayerNorm and LayerNormGrad with outputs and gradients of
// type types.out and an input of type types.in.
func (r *rig) layerNorm(types pair, n, cols int) {
	const eps float32 = 1e-5
	x, dy := r.random(types.in, n*cols), r.random(types.out, n*cols)
	gamma, beta, before := r.random(device.F32, cols), r.random(device.F32, cols), r.random(device.F32, 2*cols)
	steady(cols, dy, before)
	for i := range x {
		x[i] = 0.3*x[i] + 3 + 2*float64(i%cols%2) // avoids rows of almost equal numbers, whose gradient is mostly rounding error
	}
	rounded(types.in, x)
	out, mean, rstd := refLayerNorm(x, gamma, beta, cols, float64(eps))
	dx, dgamma, dbeta := refLayerNormGrad(dy, x, gamma, cols, float64(eps))
	for c := range cols {
		dgamma[c] += before[c]
		dbeta[c] += before[cols+c]
	}
	r.verify(fmt.Sprintf("%v,%dx%d", types, n, cols), func(r *rig) []result {
		from, scale, grad := r.input(types.in, x), r.input(device.F32, gamma), r.input(types.out, dy)
		to, m, s := r.output(types.out, n*cols), r.output(device.F32, n), r.output(device.F32, n)
		r.d.LayerNorm(to, m, s, from, scale, r.input(device.F32, beta), n, cols, eps)
		back, dg, db := r.output(types.out, n*cols), r.inout(device.F32, before[:cols]), r.inout(device.F32, before[cols:])
		r.d.LayerNormGrad(back, dg, db, grad, from, scale, m, s, n, cols)
		same, dg2, db2 := r.inout(types.out, dy), r.inout(device.F32, before[:cols]), r.inout(device.F32, before[cols:])
		r.d.LayerNormGrad(same, dg2, db2, same, from, scale, m, s, n, cols)
		results := []result{
			r.forward("out", to, out), r.forward("mean", m, mean), r.forward("rstd", s, rstd),
			r.gradient("dgamma", dg, dgamma), r.gradient("dbeta", db, dbeta),
			r.gradient("dgamma with dx in place of dy", dg2, dgamma), r.gradient("dbeta with dx in place of dy", db2, dbeta),
		}
		if cols == 1 {
			return results // x̂ is 0 and so is dx: only rounding errors would be compared
		}
		return append(results, r.gradient("dx", back, dx), r.gradient("dx in place of dy", same, dx))
	})
}

func testCrossEntropy(r *rig) {
	for _, shape := range rows {
		for _, behind := range []int{0, 1, 56} {
			r.crossEntropy(shape[0], shape[1], behind)
		}
	}
}

// crossEntropy tests n rows of logits. Each row has extra elements after the
// classes; behind is their number.
func (r *rig) crossEntropy(n, classes, behind int) {
	logits, target := r.random(r.act, n*classes), r.indices(n, classes)
	for i := range logits {
		logits[i] = logits[i]*5 + 200 // exp overflows unless the largest is subtracted
	}
	rounded(r.act, logits)
	for i := 1; i < n; i += 3 {
		target[i] = device.IgnoreIndex
	}
	if n < 16 {
		target[0] = int32(slices.Index(logits[:classes], slices.Min(logits[:classes]))) // avoids losses near 0
	}
	const scale float32 = 0.03125
	loss, grad := refCrossEntropy(logits, target, classes, float64(scale))
	// Elements after the classes are NaN, which has no effect only if they are never
	// read.
	logits, grad = padded(logits, classes, behind, math.NaN()), padded(grad, classes, behind, 0)
	r.verify(fmt.Sprintf("%dx%d+%d", n, classes, behind), func(r *rig) []result {
		losses, x := r.output(device.F32, n), r.inout(r.act, logits)
		r.d.CrossEntropy(losses, x, r.ints(target), n, classes, scale)
		return []result{r.forward("loss", losses, loss), r.gradient("logits", x, grad)}
	})
}

// padded returns x with copies of v inserted after every cols elements; behind
// is the number of copies each time.
func padded(x []float64, cols, behind int, v float64) []float64 {
	var y []float64
	for row := range slices.Chunk(x, cols) {
		y = append(append(y, row...), slices.Repeat([]float64{v}, behind)...)
	}
	return y
}
