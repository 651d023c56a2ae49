package device

import "testing"

func TestWant(t *testing.T) {
	x := Tensor{Addr: 512, Len: 6, DType: F32}
	Want("Add", "x", x, 6, F32)
	for _, c := range []struct {
		x    Tensor
		n    int
		d    DType
		want string
	}{
		{x, 5, F32, "shape: Add: x holds 6 of F32, not 5 of F32"},
		{x, 6, I32, "shape: Add: x holds 6 of F32, not 6 of I32"},
		{Tensor{Len: 6, DType: F32}, 6, F32, "shape: Add: x is no tensor"},
		{Tensor{}, 0, 0, "shape: Add: x is no tensor"},
	} {
		if got := panics(t, func() { Want("Add", "x", c.x, c.n, c.d) }); got != c.want {
			t.Errorf("panic %q, want %q", got, c.want)
		}
	}
}
