package host

import (
	"math"

	"gonum.org/v1/gonum/blas"

	"headroom/device"
)

// queryRows is the number of queries that an attention handles at a time.
// Besides copies of one head, it keeps only the scores of these queries with
// the keys that they see, so its memory grows with T, not T².
const queryRows = 32

// head is one head of one sample: T rows of D values, stride values apart.
type head struct {
	x      []float32
	stride int
}

func (h head) row(t, d int) []float32 { return h.x[t*h.stride:][:d] }

// heads returns views of one (sample, head) pair in x. If parts is 3, x is
// B×T×3×H×D, and heads returns the pair's queries, keys and values. If parts is
// 1, x is B×T×H×D, and only the first view is set: the pair's rows.
func heads(x []float32, pair, parts int, s device.Attention) [3]head {
	var all [3]head
	stride := parts * s.H * s.D
	from := pair/s.H*s.T*stride + pair%s.H*s.D
	for part := range parts {
		all[part] = head{x[from+part*s.H*s.D:], stride}
	}
	return all
}

// Attention computes out = softmax(q·kᵀ/√D)·v with later keys masked out.
func (d *Device) Attention(out, lse, qkv device.Tensor, s device.Attention) {
	const op = "Attention"
	s.Check(out, lse, qkv)
	pairs := s.B * s.H
	to, logs, from := d.floats(op, "out", out), d.floats(op, "lse", lse), d.floats(op, "qkv", qkv)
	if d.failed() {
		return
	}
	d.parallel(pairs, 1, func(worker, first, last int) {
		t := &d.tiles[worker]
		for pair := first; pair < last; pair++ {
			t.load(heads(from, pair, 3, s), s)
			for at := 0; at < s.T; at += queryRows {
				t.forward(heads(to, pair, 1, s)[0], logs[pair*s.T:][:s.T], at)
			}
		}
	})
	d.store(out, to)
}

// AttentionGrad computes dqkv by the formulas of Dao et al., FlashAttention,
// 2022, appendix B, in which p are the probabilities and ds is the gradient of
// the scores:
//
//	delta = Σ_d dout·out, dv = pᵀ·dout, ds = p·(dout·vᵀ − delta)/√D, dq = ds·k, dk = dsᵀ·q
func (d *Device) AttentionGrad(dqkv, delta, dout, qkv, out, lse device.Tensor, s device.Attention) {
	const op = "AttentionGrad"
	s.CheckGrad(dqkv, delta, dout, qkv, out, lse)
	pairs := s.B * s.H
	to, from := d.floats(op, "dqkv", dqkv), d.floats(op, "qkv", qkv)
	grad, result := d.floats(op, "dout", dout), d.floats(op, "out", out)
	deltas, logs := d.floats(op, "delta", delta), d.floats(op, "lse", lse)
	if d.failed() {
		return
	}
	d.parallel(pairs, 1, func(worker, first, last int) {
		t := &d.tiles[worker]
		for pair := first; pair < last; pair++ {
			dO, o := heads(grad, pair, 1, s)[0], heads(result, pair, 1, s)[0]
			rows := deltas[pair*s.T:][:s.T]
			for i := range rows {
				rows[i] = dot(dO.row(i, s.D), o.row(i, s.D))
			}
			t.load(heads(from, pair, 3, s), s)
			into := heads(to, pair, 3, s)
			t.clearGrad()
			for at := 0; at < s.T; at += queryRows {
				t.backward(into[0], dO, logs[pair*s.T:][:s.T], rows, at)
			}
			t.unload(into[1], into[2])
		}
	})
	d.store(dqkv, to)
}

func dot(a, b []float32) float32 {
	sum := 0.0
	for i, v := range a {
		sum += float64(v) * float64(b[i])
	}
	return float32(sum)
}

// tile is the scratch that one worker needs for one head. Keys, values and
// their gradients are kept as D rows of T values, so that every product runs
// along T, which is usually longer than D: gonum then does most of the work in
// one call.
type tile struct {
	shape          device.Attention
	q              head
	stride         int       // row length of the fields below: T rounded up to 16 bytes; see panel
	k, v, dk, dv   []float32 // D×T
	scores, dscore []float32 // queryRows×T
}

// load copies a head's keys and values into the tile, transposed.
func (t *tile) load(from [3]head, s device.Attention) {
	t.shape, t.q, t.stride = s, from[0], (s.T+3)&^3
	n := s.D * t.stride
	transpose(grow(&t.k, n), t.stride, from[1].x, from[1].stride, s.T, s.D)
	transpose(grow(&t.v, n), t.stride, from[2].x, from[2].stride, s.T, s.D)
	t.k, t.v = t.k[:n], t.v[:n]
	t.scores = grow(&t.scores, queryRows*t.stride)
}

// span returns how many queries the tile holds, and how many keys, counted from the
// first key, those queries see; at is the index of the first query.
func (t *tile) span(at int) (rows, keys int) {
	rows = min(queryRows, t.shape.T-at)
	return rows, at + rows
}

// forward computes the outputs of the tile's queries; at is the index of the first one.
func (t *tile) forward(out head, lse []float32, at int) {
	rows, keys := t.span(at)
	gemm(blas.NoTrans, blas.NoTrans, rows, keys, t.shape.D, t.q.x[at*t.q.stride:], t.q.stride, t.k, t.stride, 0, t.scores, t.stride)
	scale := float32(1 / math.Sqrt(float64(t.shape.D)))
	for i := range rows {
		row := t.scores[i*t.stride:][:keys]
		seen := row[:at+i+1]
		most := largest(seen) * scale
		sum := expRow(seen, seen, scale, most)
		norm := float32(1 / sum)
		for j := range seen {
			seen[j] *= norm
		}
		clear(row[len(seen):])
		lse[at+i] = float32(math.Log(sum)) + most
	}
	gemm(blas.NoTrans, blas.Trans, rows, t.shape.D, keys, t.scores, t.stride, t.v, t.stride, 0, out.x[at*out.stride:], out.stride)
}

// clearGrad sets the gradients of keys and values, which are sums over queries,
// to 0.
func (t *tile) clearGrad() {
	n := t.shape.D * t.stride
	t.dk, t.dv = grow(&t.dk, n), grow(&t.dv, n)
	clear(t.dk)
	clear(t.dv)
	t.dscore = grow(&t.dscore, queryRows*t.stride)
}

// backward computes the gradients that come from the tile's queries; at is the
// index of the first one. It writes their dq and adds to the tile's dk and dv.
func (t *tile) backward(dq, dout head, lse, delta []float32, at int) {
	rows, keys := t.span(at)
	q, dO := t.q.x[at*t.q.stride:], dout.x[at*dout.stride:]
	gemm(blas.NoTrans, blas.NoTrans, rows, keys, t.shape.D, q, t.q.stride, t.k, t.stride, 0, t.scores, t.stride)
	gemm(blas.NoTrans, blas.NoTrans, rows, keys, t.shape.D, dO, dout.stride, t.v, t.stride, 0, t.dscore, t.stride)
	scale := float32(1 / math.Sqrt(float64(t.shape.D)))
	for i := range rows {
		p, ds := t.scores[i*t.stride:][:keys], t.dscore[i*t.stride:][:keys]
		seen := at + i + 1
		expRow(p[:seen], p[:seen], scale, lse[at+i])
		for j, v := range p[:seen] {
			ds[j] = v * (ds[j] - delta[at+i]) * scale
		}
		clear(p[seen:])
		clear(ds[seen:])
	}
	gemm(blas.NoTrans, blas.Trans, rows, t.shape.D, keys, t.dscore, t.stride, t.k, t.stride, 0, dq.x[at*dq.stride:], dq.stride)
	gemm(blas.Trans, blas.NoTrans, t.shape.D, keys, rows, q, t.q.stride, t.dscore, t.stride, 1, t.dk, t.stride)
	gemm(blas.Trans, blas.NoTrans, t.shape.D, keys, rows, dO, dout.stride, t.scores, t.stride, 1, t.dv, t.stride)
}

// unload copies the gradients of keys and values from the tile to dk and dv.
func (t *tile) unload(dk, dv head) {
	transpose(dk.x, dk.stride, t.dk, t.stride, t.shape.D, t.shape.T)
	transpose(dv.x, dv.stride, t.dv, t.stride, t.shape.D, t.shape.T)
}
