package device

import "math/bits"

// Philox is the counter-based generator Philox4x32-10 of Salmon, Moraes, Dror
// and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). It is a
// pure function: equal arguments give equal words on every machine and device.
func Philox(key [2]uint32, counter [4]uint32) [4]uint32 {
	const (
		multiplier0, multiplier1 = 0xD2511F53, 0xCD9E8D57
		weyl0, weyl1             = 0x9E3779B9, 0xBB67AE85
		rounds                   = 10
	)
	k0, k1 := key[0], key[1]
	c0, c1, c2, c3 := counter[0], counter[1], counter[2], counter[3]
	for range rounds {
		high0, low0 := bits.Mul32(multiplier0, c0)
		high1, low1 := bits.Mul32(multiplier1, c2)
		c0, c1, c2, c3 = high1^c1^k0, low1, high0^c3^k1, low0
		k0, k1 = k0+weyl0, k1+weyl1
	}
	return [4]uint32{c0, c1, c2, c3}
}

// Draw returns the four words drawn for elements 4·block to 4·block+3 of a sample:
// [Philox] with the seed, low word first, as its key and (block, sample, Site, Step) as
// its counter. Element i of the sample uses word i%4 of block i/4.
func (d Dropout) Draw(sample int32, block uint32) [4]uint32 {
	key := [2]uint32{uint32(d.Seed), uint32(d.Seed >> 32)}
	return Philox(key, [4]uint32{block, uint32(sample), d.Site, d.Step})
}

// Threshold returns ⌊P·2³²⌋. An element is kept if its word is at least the
// threshold, which has probability 1−P to within 2⁻³². The product is exact in
// float64, so every device has the same threshold.
func (d Dropout) Threshold() uint32 { return uint32(uint64(float64(d.P) * (1 << 32))) }

// Scale returns 1/(1−P), rounded once to float32. A kept element is multiplied
// by it, so that the expected value stays the same; a dropped element becomes
// 0.
func (d Dropout) Scale() float32 { return float32(1 / (1 - float64(d.P))) }
