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
		{x, 5, F32, "shape: Add: x holds 6 elements of F32, not 5 of F32"},
		{x, 6, I32, "shape: Add: x holds 6 elements of F32, not 6 of I32"},
		{Tensor{Len: 6, DType: F32}, 6, F32, "shape: Add: x is not a tensor"},
		{Tensor{}, 0, 0, "shape: Add: x is not a tensor"},
	} {
		if got := panics(t, func() { Want("Add", "x", c.x, c.n, c.d) }); got != c.want {
			t.Errorf("panic %q, want %q", got, c.want)
		}
	}
}

func TestWantFloat(t *testing.T) {
	for _, d := range []DType{F32, BF16} {
		WantFloat("Add", "x", Tensor{Addr: 512, Len: 6, DType: d}, 6)
	}
	for _, c := range []struct {
		x    Tensor
		n    int
		want string
	}{
		{Tensor{512, 6, F32}, 5, "shape: Add: x holds 6 elements of F32, not 5 of F32 or BF16"},
		{Tensor{512, 6, BF16}, 7, "shape: Add: x holds 6 elements of BF16, not 7 of F32 or BF16"},
		{Tensor{512, 6, I32}, 6, "shape: Add: x holds 6 elements of I32, not 6 of F32 or BF16"},
		{Tensor{0, 6, BF16}, 6, "shape: Add: x is not a tensor"},
		{Tensor{}, 0, "shape: Add: x is not a tensor"},
	} {
		if got := panics(t, func() { WantFloat("Add", "x", c.x, c.n) }); got != c.want {
			t.Errorf("panic %q, want %q", got, c.want)
		}
	}
}
