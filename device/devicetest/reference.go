package devicetest

import (
	"math"

	"headroom/device"
)

// The references compute each operation by the formula in the operation's
// documentation, in float64 and without regard to speed.

func refMatMul(c, a, b []float64, p device.MatMul) []float64 {
	aRow, aCol, bRow, bCol := p.K, 1, p.N, 1
	if p.TransA {
		aRow, aCol = 1, p.M
	}
	if p.TransB {
		bRow, bCol = 1, p.K
	}
	out := make([]float64, p.M*p.N)
	for i := range p.M {
		for j := range p.N {
			sum := 0.0
			for k := range p.K {
				sum += a[i*aRow+k*aCol] * b[k*bRow+j*bCol]
			}
			if p.Beta == 1 {
				sum += c[i*p.N+j]
			}
			out[i*p.N+j] = sum
		}
	}
	return out
}

func refGELU(x float64) float64 {
	return 0.5 * x * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
}

func refGELUGrad(x float64) float64 {
	t := math.Tanh(math.Sqrt(2/math.Pi) * (x + 0.044715*x*x*x))
	return 0.5*(1+t) + 0.5*x*(1-t*t)*math.Sqrt(2/math.Pi)*(1+3*0.044715*x*x)
}

func refEmbed(tok []int32, tokens, positions []float64, s device.Embed) []float64 {
	out := make([]float64, s.B*s.T*s.C)
	for i := range out {
		row, c := i/s.C, i%s.C
		out[i] = tokens[int(tok[row])*s.C+c] + positions[row%s.T*s.C+c]
	}
	return out
}

func refEmbedGrad(dtokens, dpositions, dout []float64, tok []int32, s device.Embed) {
	for i, v := range dout {
		row, c := i/s.C, i%s.C
		dtokens[int(tok[row])*s.C+c] += v
		dpositions[row%s.T*s.C+c] += v
	}
}

func refLayerNorm(x, gamma, beta []float64, cols int, eps float64) (out, mean, rstd []float64) {
	for from := 0; from < len(x); from += cols {
		row := x[from : from+cols]
		m, v := 0.0, 0.0
		for _, a := range row {
			m += a / float64(cols)
		}
		for _, a := range row {
			v += (a - m) * (a - m) / float64(cols)
		}
		inverse := 1 / math.Sqrt(v+eps)
		mean, rstd = append(mean, m), append(rstd, inverse)
		for c, a := range row {
			out = append(out, (a-m)*inverse*gamma[c]+beta[c])
		}
	}
	return out, mean, rstd
}

func refLayerNormGrad(dy, x, gamma []float64, cols int, eps float64) (dx, dgamma, dbeta []float64) {
	dgamma, dbeta = make([]float64, cols), make([]float64, cols)
	zero := make([]float64, cols)
	_, mean, rstd := refLayerNorm(x, gamma, zero, cols, eps)
	for r := range mean {
		var g, gx float64
		normal := func(c int) float64 { return (x[r*cols+c] - mean[r]) * rstd[r] }
		for c := range cols {
			v := dy[r*cols+c]
			g += v * gamma[c] / float64(cols)
			gx += v * gamma[c] * normal(c) / float64(cols)
			dgamma[c] += v * normal(c)
			dbeta[c] += v
		}
		for c := range cols {
			dx = append(dx, rstd[r]*(dy[r*cols+c]*gamma[c]-g-normal(c)*gx))
		}
	}
	return dx, dgamma, dbeta
}

func refCrossEntropy(logits []float64, target []int32, classes int, scale float64) (loss, grad []float64) {
	for r, t := range target {
		row := logits[r*classes : (r+1)*classes]
		if t == device.IgnoreIndex {
			loss, grad = append(loss, 0), append(grad, make([]float64, classes)...)
			continue
		}
		lse := logSumExp(row)
		loss = append(loss, lse-row[t])
		for c, v := range row {
			g := scale * math.Exp(v-lse)
			if c == int(t) {
				g -= scale
			}
			grad = append(grad, g)
		}
	}
	return loss, grad
}

func logSumExp(x []float64) float64 {
	most, sum := math.Inf(-1), 0.0
	for _, v := range x {
		most = max(most, v)
	}
	for _, v := range x {
		sum += math.Exp(v - most)
	}
	return most + math.Log(sum)
}
