package model

import (
	"fmt"
	"math"

	"headroom/device"
)

// gpt is a decoder-only transformer like GPT-2: token and position embeddings,
// dropout, blocks, a final normalisation, and logits through the transposed
// token embedding.
type gpt struct {
	tokens, positions *parameter
	blocks            []block
	last              norm
	embed             device.Embed // B and T are filled in at each use
}

// embedSite is the number of the dropout after the embeddings. The two dropouts
// of each block are numbered from there on.
const embedSite = 0

// deviation is the standard deviation of the initial weights, as in GPT-2.
const deviation = 0.02

// newGPT builds the transformer and adds its parameters to l. It names them as
// GPT-2 does in Transformers, without the leading "transformer.".
func newGPT(s Spec, l *layout) *gpt {
	g := &gpt{
		tokens:    l.padded("wte.weight", s.Vocab, (s.Vocab+7)/8*8, s.Width, deviation),
		positions: l.matrix("wpe.weight", s.Context, s.Width, deviation),
		embed:     device.Embed{C: s.Width, V: s.Vocab},
	}
	for i := range s.Layers {
		g.blocks = append(g.blocks, newBlock(s, l, i))
	}
	g.last = l.norm("ln_f", s.Width)
	return g
}

// classes returns the number of logits per row. It is a multiple of eight, so
// that every row starts where tensor cores can read it. Logits beyond the
// vocabulary are 0.
func (g *gpt) classes() int { return g.tokens.room / g.embed.C }

func (g *gpt) forward(s *scope, in input) (device.Tensor, func(device.Tensor)) {
	shape := g.embed
	shape.B, shape.T = in.n, in.rows/in.n
	x := s.floats(in.rows * shape.C)
	s.dev.Embed(x, in.data, s.w(g.tokens), s.w(g.positions), shape)
	s.drop(x, in, embedSite)

	kept := make([]activations, len(g.blocks))
	for i, b := range g.blocks {
		kept[i] = b.forward(s, x, in)
		x = b.output(s, kept[i], in)
		if s.recompute {
			kept[i].freeAllButInput(s)
		}
	}
	h := g.last.forward(s, x, in.rows)
	logits := s.activations(in.rows * g.classes())
	s.dev.MatMul(logits, h.out, s.factor(g.tokens), device.MatMul{M: in.rows, N: g.classes(), K: shape.C, TransB: true})

	return logits, func(dlogits device.Tensor) {
		s.dev.MatMul(s.factorGrad(g.tokens), dlogits, h.out, device.MatMul{M: g.classes(), N: shape.C, K: in.rows, TransA: true, Beta: 1})
		d := h.out // the gradient of h.out overwrites h.out
		s.dev.MatMul(d, dlogits, s.factor(g.tokens), device.MatMul{M: in.rows, N: shape.C, K: g.classes()})
		s.free(dlogits)
		g.last.backward(s, d, x, h.stats, in.rows)
		s.free(x, h.stats)
		d = s.as(device.F32, d)
		for i := len(g.blocks) - 1; i >= 0; i-- {
			if s.recompute {
				kept[i] = g.blocks[i].forward(s, kept[i].x, in)
			}
			g.blocks[i].backward(s, d, kept[i], in)
		}
		s.drop(d, in, embedSite)
		s.dev.EmbedGrad(s.g(g.tokens), s.g(g.positions), d, in.data, shape)
		s.free(d)
	}
}

// block is one layer of the transformer:
//
//	mid = x + dropout(attention(norm(x)))
//	y   = mid + dropout(mlp(norm(mid)))
type block struct {
	ln1, ln2         norm
	qkv, join        linear
	expand, contract linear
	heads            int
	site             int // number of the block's first dropout
}

// newBlock builds block i and adds its parameters to l. As in GPT-2, the initial
// weights of the two projections onto the residual stream are scaled by
// 1/√(2·layers), so that the stream's variance does not grow with depth.
func newBlock(s Spec, l *layout, i int) block {
	name, c := fmt.Sprintf("h.%d.", i), s.Width
	residual := deviation / math.Sqrt(2*float64(s.Layers))
	return block{
		ln1:      l.norm(name+"ln_1", c),
		qkv:      l.linear(name+"attn.c_attn", c, 3*c, deviation),
		join:     l.linear(name+"attn.c_proj", c, c, residual),
		ln2:      l.norm(name+"ln_2", c),
		expand:   l.linear(name+"mlp.c_fc", c, 4*c, deviation),
		contract: l.linear(name+"mlp.c_proj", 4*c, c, residual),
		heads:    s.Heads,
		site:     embedSite + 1 + 2*i,
	}
}

// activations are the tensors that the forward pass of a block keeps for its
// backward pass.
type activations struct {
	x             device.Tensor // the block's input
	ln1           normed
	qkv, att, lse device.Tensor
	mid           device.Tensor // the residual stream after attention
	ln2           normed
	sum, act      device.Tensor // before and after GELU
}

func (a activations) freeAllButInput(s *scope) {
	s.free(a.ln1.out, a.ln1.stats, a.qkv, a.att, a.lse, a.mid, a.ln2.out, a.ln2.stats, a.sum, a.act)
}

func (b block) attention(in input) device.Attention {
	return device.Attention{B: in.n, T: in.rows / in.n, H: b.heads, D: b.join.in / b.heads}
}

// forward computes everything in the block except its output. Only the first
// forward pass needs the output; recomputation in the backward pass does not.
func (b block) forward(s *scope, x device.Tensor, in input) activations {
	a := activations{x: x}
	a.ln1 = b.ln1.forward(s, x, in.rows)
	a.qkv = b.qkv.forward(s, s.kind, a.ln1.out, in.rows)
	a.att, a.lse = s.activations(x.Len), s.floats(in.rows*b.heads)
	s.dev.Attention(a.att, a.lse, a.qkv, b.attention(in))
	a.mid = b.join.forward(s, device.F32, a.att, in.rows)
	s.drop(a.mid, in, b.site)
	s.dev.Add(a.mid, x)

	a.ln2 = b.ln2.forward(s, a.mid, in.rows)
	a.sum = b.expand.forward(s, s.kind, a.ln2.out, in.rows)
	a.act = s.activations(a.sum.Len)
	s.dev.GELU(a.act, a.sum)
	return a
}

func (b block) output(s *scope, a activations, in input) device.Tensor {
	y := b.contract.forward(s, device.F32, a.act, in.rows)
	s.drop(y, in, b.site+1)
	s.dev.Add(y, a.mid)
	return y
}

// backward replaces d, the gradient of the block's output, with the gradient of its
// input, and frees the tensors of a. Like the residual stream, d is float32 even in
// mixed precision. Gradients overwrite activations that are no longer needed.
func (b block) backward(s *scope, d device.Tensor, a activations, in input) {
	dy := s.dropped(d, in, b.site+1)
	b.contract.gradients(s, dy, a.act, in.rows)
	b.contract.input(s, a.act, dy, in.rows)
	s.freeDropped(dy, d)
	s.dev.GELUGrad(a.act, a.sum, a.act)
	s.free(a.sum)
	b.expand.gradients(s, a.act, a.ln2.out, in.rows)
	b.expand.input(s, a.ln2.out, a.act, in.rows)
	s.free(a.act)
	b.ln2.backward(s, a.ln2.out, a.mid, a.ln2.stats, in.rows)
	s.dev.Add(d, a.ln2.out)
	s.free(a.ln2.out, a.ln2.stats, a.mid)

	dy = s.dropped(d, in, b.site)
	b.join.gradients(s, dy, a.att, in.rows)
	datt := s.activations(d.Len)
	b.join.input(s, datt, dy, in.rows)
	s.freeDropped(dy, d)
	dqkv, delta := s.activations(a.qkv.Len), s.floats(a.lse.Len)
	s.dev.AttentionGrad(dqkv, delta, datt, a.qkv, a.att, a.lse, b.attention(in))
	s.free(datt, delta, a.qkv, a.att, a.lse)
	b.qkv.gradients(s, dqkv, a.ln1.out, in.rows)
	b.qkv.input(s, a.ln1.out, dqkv, in.rows)
	s.free(dqkv)
	b.ln1.backward(s, a.ln1.out, a.x, a.ln1.stats, in.rows)
	s.dev.Add(d, a.ln1.out)
	s.free(a.ln1.out, a.ln1.stats, a.x)
}
