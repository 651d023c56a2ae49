package device

import "testing"

// TestPhiloxKnownAnswers checks Philox against the known answers that its
// authors publish with their reference implementation, Random123, for
// philox4x32 with 10 rounds.
func TestPhiloxKnownAnswers(t *testing.T) {
	const ones = 0xffffffff
	for _, c := range []struct {
		counter [4]uint32
		key     [2]uint32
		want    [4]uint32
	}{
		{[4]uint32{}, [2]uint32{}, [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{[4]uint32{ones, ones, ones, ones}, [2]uint32{ones, ones}, [4]uint32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
		{[4]uint32{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, [2]uint32{0xa4093822, 0x299f31d0},
			[4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
	} {
		if got := Philox(c.key, c.counter); got != c.want {
			t.Errorf("Philox(%x, %x) = %x, want %x", c.key, c.counter, got, c.want)
		}
	}
}

func TestDropoutDraw(t *testing.T) {
	d := Dropout{P: 0.25, Seed: 0x299f31d0a4093822, Site: 0x13198a2e, Step: 0x03707344}
	sample := uint32(0x85a308d3)
	want := [4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}
	if got := d.Draw(int32(sample), 0x243f6a88); got != want {
		t.Errorf("draw %x, want %x: seed low word first, counter (block, sample, site, step)", got, want)
	}
}

func TestDropoutThreshold(t *testing.T) {
	for _, c := range []struct {
		p         float32
		threshold uint32
		scale     float32
	}{
		{0, 0, 1},
		{0.25, 1 << 30, 4. / 3},
		{0.1, 429496736, 1 / (1 - 0.1)}, // float32(0.1) is 0.100000001490116
		{0x1.fffffep-1, 0xffffff00, 1 << 24},
	} {
		d := Dropout{P: c.p}
		if d.Threshold() != c.threshold || d.Scale() != c.scale {
			t.Errorf("P %v: threshold %d, scale %v; want %d, %v", c.p, d.Threshold(), d.Scale(), c.threshold, c.scale)
		}
	}
}
