package device

import (
	"testing"

	"headroom/memory"
)

func TestDType(t *testing.T) {
	for _, c := range []struct {
		d     DType
		name  string
		size  int
		float bool
	}{
		{F32, "F32", 4, true}, {I32, "I32", 4, false}, {BF16, "BF16", 2, true},
	} {
		if c.d.String() != c.name || c.d.Size() != c.size || c.d.Float() != c.float {
			t.Errorf("%v of %d bytes, float %v; want %+v", c.d, c.d.Size(), c.d.Float(), c)
		}
	}
	if got := DType(9); got.Float() || got.String() != "DType(9)" {
		t.Errorf("no type: %v, float %v", got, got.Float())
	}
}

func TestView(t *testing.T) {
	for _, c := range []struct {
		d     DType
		at    Addr
		bytes memory.Bytes
	}{
		{F32, 512 + 12, 20}, {I32, 512 + 12, 20}, {BF16, 512 + 6, 10},
	} {
		got := Tensor{512, 9, c.d}.View(3, 5)
		if want := (Tensor{c.at, 5, c.d}); got != want || got.Bytes() != c.bytes {
			t.Errorf("elements 3 to 8 of 9 of %v: %+v of %d bytes, want %+v of %d", c.d, got, got.Bytes(), want, c.bytes)
		}
	}
	whole := Tensor{512, 9, BF16}
	for _, c := range []struct {
		from, n int
		want    string
	}{
		{-1, 2, "shape: View: elements -1 to 1 of 9"}, {3, -1, "shape: View: elements 3 to 2 of 9"}, {5, 5, "shape: View: elements 5 to 10 of 9"},
	} {
		if got := panics(t, func() { whole.View(c.from, c.n) }); got != c.want {
			t.Errorf("panic %q, want %q", got, c.want)
		}
	}
}
