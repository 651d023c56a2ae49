package device

import "fmt"

// Check panics with a *[ShapeError] unless the parameters and operands fit
// [Network.Embed].
func (s Embed) Check(out, tok, tokens, positions Tensor) {
	const op = "Embed"
	s.check(op)
	Want(op, "out", out, s.B*s.T*s.C, F32)
	Want(op, "tok", tok, s.B*s.T, I32)
	Want(op, "tokens", tokens, s.V*s.C, F32)
	s.wantPositions(op, "positions", positions)
}

// CheckGrad panics with a *[ShapeError] unless the parameters and operands fit
// [Network.EmbedGrad].
func (s Embed) CheckGrad(dtokens, dpositions, dout, tok Tensor) {
	const op = "EmbedGrad"
	s.check(op)
	Want(op, "dtokens", dtokens, s.V*s.C, F32)
	s.wantPositions(op, "dpositions", dpositions)
	Want(op, "dout", dout, s.B*s.T*s.C, F32)
	Want(op, "tok", tok, s.B*s.T, I32)
}

func (s Embed) check(op string) {
	positive(op, "B", s.B)
	positive(op, "T", s.T)
	positive(op, "C", s.C)
	positive(op, "V", s.V)
}

// wantPositions panics with a *[ShapeError] unless t is a table of whole rows,
// at least one for each position.
func (s Embed) wantPositions(op, name string, t Tensor) {
	Want(op, name, t, t.Len, F32)
	if t.Len%s.C != 0 || t.Len < s.T*s.C {
		panic(&ShapeError{Op: op, Text: fmt.Sprintf("%s holds %d elements: must be a multiple of C = %d, and at least T·C = %d", name, t.Len, s.C, s.T*s.C)})
	}
}
