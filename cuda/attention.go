//go:build cuda

package cuda

import (
	"math"

	"headroom/device"
)

// rowsAChunk is the largest number of query positions in a chunk. A long sequence is cut into
// several chunks, so that the products of a chunk leave out the keys after its last query.
const rowsAChunk = 256

// chunk is a part of an attention's scores: those of the (sample, head) pairs in
// [first, first+pairs) for the query positions in [r0, r0+rows).
type chunk struct{ first, pairs, r0, rows int }

func (c chunk) keys() int { return c.r0 + c.rows }

// chunks cuts an attention into pieces whose scores fit the scratch memory. Within a
// group of pairs, the chunk with the last rows comes first. Its queries attend to every
// position, so it writes the gradients of all keys and values; the other chunks add to
// them.
func chunks(s device.Attention) []chunk {
	room := int(chunkBytes) / 4
	rows := min(s.T, rowsAChunk, max(1, room/s.T))
	blocks := (s.T + rows - 1) / rows
	pairs := max(1, min(s.B*s.H, room/(rows*s.T), int(pieceBytes)/(addressArrays*8)))
	var all []chunk
	for first := 0; first < s.B*s.H; first += pairs {
		for block := blocks - 1; block >= 0; block-- {
			r0 := block * rows
			all = append(all, chunk{first, min(pairs, s.B*s.H-first), r0, min(rows, s.T-r0)})
		}
	}
	return all
}

// addressArrays is the largest number of arrays of addresses that a chunk
// needs: six for values and six for gradients.
const addressArrays = 12

// addresses holds the device addresses of six arrays, which contain the
// addresses of a chunk's matrices.
type addresses struct{ q, k, v, out, scores, other device.Addr }

// addressesOf fills in and returns six arrays of addresses for a chunk of qkv and out:
// the first six arrays if set is 0, the next six if set is 1.
func (g *gpu) addressesOf(set int, c chunk, s device.Attention, qkv, out device.Tensor) addresses {
	array := func(i int) device.Addr {
		return g.scratch.pieces + device.Addr((6*set+i)*c.pairs*8)
	}
	a := addresses{array(0), array(1), array(2), array(3), array(4), array(5)}
	g.launch("attention_addresses", walk(c.pairs), a.q, a.k, a.v, a.out, a.scores, a.other,
		qkv, out, g.scratch.scores, g.scratch.other, c.first, c.pairs, s.T, s.H, s.D, c.r0, c.rows)
	return a
}

func (g *gpu) Attention(out, lse, qkv device.Tensor, s device.Attention) {
	s.Check(out, lse, qkv)
	if qkv.DType == device.BF16 {
		g.flash(out, lse, qkv, s)
		return
	}
	wide, narrow := 3*s.H*s.D, s.H*s.D
	for _, c := range chunks(s) {
		n := c.keys()
		a := g.addressesOf(0, c, s, qkv, out)
		g.products(matrix{a.scores, n, 0}, matrix{a.q, wide, s.D | offset(qkv)}, matrix{a.k, wide, s.D | offset(qkv)}, device.MatMul{M: c.rows, N: n, K: s.D, TransB: true}, scale(s), c.pairs)
		g.launch("causal_softmax", warps(c.pairs*c.rows), g.scratch.scores, lse, c.pairs, c.first, s.T, c.r0, c.rows)
		g.products(matrix{a.out, narrow, s.D | offset(out)}, matrix{a.scores, n, 0}, matrix{a.v, wide, s.D | offset(qkv)}, device.MatMul{M: c.rows, N: s.D, K: n}, 1, c.pairs)
	}
}

func (g *gpu) AttentionGrad(dqkv, delta, dout, qkv, out, lse device.Tensor, s device.Attention) {
	s.CheckGrad(dqkv, delta, dout, qkv, out, lse)
	rows := s.B * s.H * s.T
	g.launch("attention_delta"+types(out), warps(rows), delta, dout, out, rows, s.T, s.H, s.D)
	if qkv.DType == device.BF16 {
		g.flashGrad(dqkv, delta, dout, qkv, lse, s)
		return
	}
	for _, c := range chunks(s) {
		g.gradOfChunk(c, dqkv, delta, dout, qkv, lse, s)
	}
}

// gradOfChunk recomputes the scores of a chunk and then computes the gradients:
// dV = Pᵀ·dO, dQ = dS·K and dK = dSᵀ·Q, where P are the probabilities and dS is
// the gradient of the scores.
func (g *gpu) gradOfChunk(c chunk, dqkv, delta, dout, qkv, lse device.Tensor, s device.Attention) {
	n, wide, narrow := c.keys(), 3*s.H*s.D, s.H*s.D
	a := g.addressesOf(0, c, s, qkv, dout)
	d := g.addressesOf(1, c, s, dqkv, dout)
	g.products(matrix{a.scores, n, 0}, matrix{a.q, wide, s.D | offset(qkv)}, matrix{a.k, wide, s.D | offset(qkv)}, device.MatMul{M: c.rows, N: n, K: s.D, TransB: true}, scale(s), c.pairs)
	g.products(matrix{a.other, n, 0}, matrix{a.out, narrow, s.D | offset(dout)}, matrix{a.v, wide, s.D | offset(qkv)}, device.MatMul{M: c.rows, N: n, K: s.D, TransB: true}, 1, c.pairs)
	g.launch("causal_softmax_grad", warps(c.pairs*c.rows), g.scratch.scores, g.scratch.other, lse, delta, c.pairs, c.first, s.T, c.r0, c.rows, scale(s))
	add := float32(1)
	if n == s.T {
		add = 0 // the first chunk of a group of pairs writes the gradients that the other chunks add to
	}
	g.products(matrix{d.v, wide, s.D | offset(dqkv)}, matrix{a.scores, n, 0}, matrix{a.out, narrow, s.D | offset(dout)}, device.MatMul{M: n, N: s.D, K: c.rows, TransA: true, Beta: add}, 1, c.pairs)
	g.products(matrix{d.k, wide, s.D | offset(dqkv)}, matrix{a.other, n, 0}, matrix{a.q, wide, s.D | offset(qkv)}, device.MatMul{M: n, N: s.D, K: c.rows, TransA: true, Beta: add}, 1, c.pairs)
	g.products(matrix{d.q, wide, s.D | offset(dqkv)}, matrix{a.other, n, 0}, matrix{a.k, wide, s.D | offset(qkv)}, device.MatMul{M: c.rows, N: s.D, K: n}, 1, c.pairs)
}

// offset returns how far the start of an F32 tensor lies above a multiple of 16 bytes, in
// elements: 0, 1, 2 or 3.
func offset(t device.Tensor) int { return int(t.Addr % 16 / 4) }

func scale(s device.Attention) float32 { return float32(1 / math.Sqrt(float64(s.D))) }
