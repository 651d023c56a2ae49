package device

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestToBF16(t *testing.T) {
	inf := float32(math.Inf(1))
	for _, c := range []struct {
		x    float32
		want uint16
	}{
		{0, 0}, {1, 0x3f80}, {-2, 0xc000}, {math.Pi, 0x4049},
		{float32(math.Copysign(0, -1)), 0x8000},
		{inf, 0x7f80}, {-inf, 0xff80},
		{0x1.01p0, 0x3f80}, {0x1.010002p0, 0x3f81}, {0x1.03p0, 0x3f82}, {0x1.02fffep0, 0x3f81}, // ties, and the float32 values next to them
		{0x1.ffp0, 0x4000},                          // rounded up to the next power of two
		{0x1p-133, 1}, {0x1p-134, 0}, {0x3p-134, 2}, // subnormals, ties again
		{-0x1.0002p-134, 0x8001}, {math.SmallestNonzeroFloat32, 0},
		{0x1.fep127, 0x7f7f}, {0x1.fefffep127, 0x7f7f}, {0x1.ffp127, 0x7f80}, {-math.MaxFloat32, 0xff80}, // the largest BF16, and float32 values beyond it
	} {
		if got := ToBF16(c.x); got != c.want {
			t.Errorf("ToBF16(%x) = %#04x, want %#04x", c.x, got, c.want)
		}
	}
}

func isNaN(x float32) bool { return x != x }

// TestBF16RoundTrip: every BF16 value is also a float32, and converting it to
// float32 and back leaves it unchanged.
func TestBF16RoundTrip(t *testing.T) {
	for i := range 1 << 16 {
		h := uint16(i)
		x := FromBF16(h)
		if math.Float32bits(x) != uint32(i)<<16 {
			t.Errorf("FromBF16(%#04x) has bits %#x", h, math.Float32bits(x))
		}
		if got := ToBF16(x); got != h && !isNaN(x) || isNaN(FromBF16(got)) != isNaN(x) {
			t.Errorf("%#04x comes back as %#04x", h, got)
		}
	}
}

// TestToBF16TakesTheNearest: between two neighbouring BF16 values lie 65535
// float32 values. The one in the middle is rounded to the even neighbour, all
// others to the nearer one.
func TestToBF16TakesTheNearest(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 1 << 16 {
		h := uint16(i)
		if h&0x7fff >= 0x7f80 {
			continue // nothing lies beyond infinity
		}
		even := h + h&1
		for low, want := range map[uint32]uint16{
			1: h, 0x7fff: h, 0x8000: even, 0x8001: h + 1, 0xffff: h + 1,
			rng.Uint32N(0x8000): h, 0x8001 + rng.Uint32N(0x7fff): h + 1,
		} {
			x := math.Float32frombits(uint32(i)<<16 | low)
			if got := ToBF16(x); got != want {
				t.Fatalf("ToBF16(%x), %#x of the way from %#04x, is %#04x, want %#04x", x, low, h, got, want)
			}
		}
	}
}

// TestToBF16KeepsNaN: a NaN's payload must neither be rounded away, which would
// leave infinity, nor be rounded up into the sign bit.
func TestToBF16KeepsNaN(t *testing.T) {
	payloads := []uint32{0x7fffff, 0x7f8000, 0x7fff, 0x8000, 0x400000, 0x3fffff}
	for bit := range 23 {
		payloads = append(payloads, 1<<bit)
	}
	for _, payload := range payloads {
		for _, sign := range []uint32{0, 1 << 31} {
			bits := sign | 0x7f800000 | payload
			got := ToBF16(math.Float32frombits(bits))
			if !isNaN(FromBF16(got)) || uint32(got)>>15 != sign>>31 {
				t.Errorf("NaN %#08x became %#04x", bits, got)
			}
		}
	}
}
