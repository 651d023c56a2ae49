package devicetest

import (
	"fmt"

	"headroom/device"
)

func testAttention(r *rig) {
	for _, s := range []device.Attention{
		{B: 1, T: 1, H: 1, D: 1}, {B: 2, T: 1, H: 3, D: 5}, {B: 1, T: 3, H: 1, D: 17}, {B: 3, T: 17, H: 2, D: 3}, {B: 1, T: 65, H: 3, D: 8},
		{B: 2, T: 33, H: 1, D: 65}, {B: 2, T: 64, H: 4, D: 16}, {B: 1, T: 129, H: 1, D: 64}, {B: 1, T: 200, H: 1, D: 32},
		{B: 2, T: 130, H: 2, D: 128}, {B: 1, T: 193, H: 1, D: 72}, {B: 1, T: 70, H: 2, D: 101}, // the widest heads, over several blocks of a GPU's kernels
	} {
		n := s.B * s.T * s.H * s.D
		qkv, dout := r.random(r.act, 3*n), r.random(r.act, n)
		out, lse := refAttention(qkv, s)
		dqkv := refAttentionGrad(dout, qkv, s)
		r.verify(fmt.Sprintf("%+v", s), func(r *rig) []result {
			from, to, logs := r.input(r.act, qkv), r.output(r.act, n), r.output(device.F32, len(lse))
			r.d.Attention(to, logs, from, s)
			back := r.output(r.act, 3*n)
			r.d.AttentionGrad(back, r.output(device.F32, len(lse)), r.input(r.act, dout), from, to, logs, s)
			return []result{r.forward("out", to, out), r.forward("lse", logs, lse), r.gradient("dqkv", back, dqkv)}
		})
	}
}
