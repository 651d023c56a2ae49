package host

import (
	"fmt"

	"headroom/device"
)

// Embed computes out[b,t,·] = tokens[tok[b,t],·] + positions[t,·].
func (d *Device) Embed(out, tok, tokens, positions device.Tensor, s device.Embed) {
	const op = "Embed"
	s.Check(out, tok, tokens, positions)
	to, ids := d.floats(op, "out", out), d.ints(op, "tok", tok)
	table, place := d.floats(op, "tokens", tokens), d.floats(op, "positions", positions)
	if d.failed() || !d.tokensIn(op, ids, s.V) {
		return
	}
	d.parallel(len(ids), grain(s.C), func(_, first, last int) {
		for i := first; i < last; i++ {
			row := to[i*s.C:][:s.C]
			copy(row, table[int(ids[i])*s.C:])
			add(row, place[i%s.T*s.C:])
		}
	})
}

// EmbedGrad adds to the gradients of both tables. Each row of a table belongs
// to one goroutine, which adds to it in the order of the samples.
func (d *Device) EmbedGrad(dtokens, dpositions, dout, tok device.Tensor, s device.Embed) {
	const op = "EmbedGrad"
	s.CheckGrad(dtokens, dpositions, dout, tok)
	table, place := d.floats(op, "dtokens", dtokens), d.floats(op, "dpositions", dpositions)
	grad, ids := d.floats(op, "dout", dout), d.ints(op, "tok", tok)
	if d.failed() || !d.tokensIn(op, ids, s.V) {
		return
	}
	d.parallel(s.T, 1+s.T/8, func(_, first, last int) {
		for t := first; t < last; t++ {
			for b := range s.B {
				add(place[t*s.C:][:s.C], grad[(b*s.T+t)*s.C:])
			}
		}
	})
	shares := d.workers
	d.parallel(shares, 1, func(_, share, _ int) {
		for i, id := range ids {
			if int(id)%shares == share {
				add(table[int(id)*s.C:][:s.C], grad[i*s.C:])
			}
		}
	})
}

// tokensIn reports whether all tokens are in [0, vocabulary); if not, Sync will
// return an error.
func (d *Device) tokensIn(op string, ids []int32, vocabulary int) bool {
	for i, id := range ids {
		if id < 0 || int(id) >= vocabulary {
			d.fail(fmt.Errorf("%s: token %d at position %d: must be 0 to %d", op, id, i, vocabulary-1))
			return false
		}
	}
	return true
}
