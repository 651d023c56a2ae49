package devicetest

import (
	"fmt"
	"slices"

	"headroom/device"
)

func testEmbed(r *rig) {
	for _, s := range []device.Embed{
		{B: 1, T: 1, C: 1, V: 1}, {B: 1, T: 1, C: 17, V: 3}, {B: 3, T: 17, C: 65, V: 5}, {B: 17, T: 3, C: 3, V: 65},
		{B: 2, T: 65, C: 64, V: 257}, {B: 8, T: 64, C: 32, V: 2},
	} {
		longest := s.T + 2 // the table of positions may be longer than T
		tok, dout := r.indices(s.B*s.T, s.V), r.random(s.B*s.T*s.C)
		tokens, positions := r.random(s.V*s.C), r.random(longest*s.C)
		out := refEmbed(tok, tokens, positions, s)
		dtokens, dpositions := append([]float64(nil), tokens...), append([]float64(nil), positions...)
		refEmbedGrad(dtokens, dpositions, dout, tok, s)
		r.verify(fmt.Sprintf("%+v", s), func(r *rig) []result {
			ids, to := r.ints(tok), r.output(len(out))
			r.d.Embed(to, ids, r.input(tokens), r.input(positions), s)
			table, place := r.inout(tokens), r.inout(positions) // adds to what is there
			r.d.EmbedGrad(table, place, r.input(dout), ids, s)
			return []result{r.forward("out", to, out), r.gradient("dtokens", table, dtokens), r.gradient("dpositions", place, dpositions)}
		})
	}
}

func testLayerNorm(r *rig) {
	const eps float32 = 1e-5
	for _, shape := range rows {
		n, cols := shape[0], shape[1]
		x, dy, gamma, beta := r.random(n*cols), r.random(n*cols), r.random(cols), r.random(cols)
		before := r.random(2 * cols)
		steady(cols, dy, before)
		for i := range x {
			x[i] = float64(float32(0.3*x[i] + 3 + 2*float64(i%cols%2))) // no row of almost equal numbers: their gradient is all rounding
		}
		out, mean, rstd := refLayerNorm(x, gamma, beta, cols, float64(eps))
		dx, dgamma, dbeta := refLayerNormGrad(dy, x, gamma, cols, float64(eps))
		for c := range cols {
			dgamma[c] += before[c]
			dbeta[c] += before[cols+c]
		}
		r.verify(fmt.Sprintf("%dx%d", n, cols), func(r *rig) []result {
			from, scale, grad := r.input(x), r.input(gamma), r.input(dy)
			to, m, s := r.output(n*cols), r.output(n), r.output(n)
			r.d.LayerNorm(to, m, s, from, scale, r.input(beta), n, cols, eps)
			back, dg, db := r.output(n*cols), r.inout(before[:cols]), r.inout(before[cols:])
			r.d.LayerNormGrad(back, dg, db, grad, from, scale, m, s, n, cols)
			same, dg2, db2 := r.inout(dy), r.inout(before[:cols]), r.inout(before[cols:])
			r.d.LayerNormGrad(same, dg2, db2, same, from, scale, m, s, n, cols)
			results := []result{
				r.forward("out", to, out), r.forward("mean", m, mean), r.forward("rstd", s, rstd),
				r.gradient("dgamma", dg, dgamma), r.gradient("dbeta", db, dbeta),
				r.gradient("dgamma with dx in place of dy", dg2, dgamma), r.gradient("dbeta with dx in place of dy", db2, dbeta),
			}
			if cols == 1 {
				return results // x̂ is 0 and so is dx: only rounding would be compared
			}
			return append(results, r.gradient("dx", back, dx), r.gradient("dx in place of dy", same, dx))
		})
	}
}

func testAttention(r *rig) {
	for _, s := range []device.Attention{
		{B: 1, T: 1, H: 1, D: 1}, {B: 2, T: 1, H: 3, D: 5}, {B: 1, T: 3, H: 1, D: 17}, {B: 3, T: 17, H: 2, D: 3}, {B: 1, T: 65, H: 3, D: 8},
		{B: 2, T: 33, H: 1, D: 65}, {B: 2, T: 64, H: 4, D: 16}, {B: 1, T: 129, H: 1, D: 64}, {B: 1, T: 200, H: 1, D: 32},
	} {
		n := s.B * s.T * s.H * s.D
		qkv, dout := r.random(3*n), r.random(n)
		out, lse := refAttention(qkv, s)
		dqkv := refAttentionGrad(dout, qkv, s)
		r.verify(fmt.Sprintf("%+v", s), func(r *rig) []result {
			from, to, logs := r.input(qkv), r.output(n), r.output(len(lse))
			r.d.Attention(to, logs, from, s)
			back := r.output(3 * n)
			r.d.AttentionGrad(back, r.output(len(lse)), r.input(dout), from, to, logs, s)
			return []result{r.forward("out", to, out), r.forward("lse", logs, lse), r.gradient("dqkv", back, dqkv)}
		})
	}
}

func testCrossEntropy(r *rig) {
	for _, shape := range rows {
		n, classes := shape[0], shape[1]
		logits, target := r.random(n*classes), r.indices(n, classes)
		for i := range logits {
			logits[i] = float64(float32(logits[i]*5 + 200)) // exp overflows unless the largest is taken off
		}
		for i := 1; i < n; i += 3 {
			target[i] = device.IgnoreIndex
		}
		if n < 16 {
			target[0] = int32(slices.Index(logits[:classes], slices.Min(logits[:classes]))) // no loss near 0
		}
		const scale float32 = 0.03125
		loss, grad := refCrossEntropy(logits, target, classes, float64(scale))
		r.verify(fmt.Sprintf("%dx%d", n, classes), func(r *rig) []result {
			losses, x := r.output(n), r.inout(logits)
			r.d.CrossEntropy(losses, x, r.ints(target), n, classes, scale)
			return []result{r.forward("loss", losses, loss), r.gradient("logits", x, grad)}
		})
	}
}
