package device

import "math"

// ToBF16 returns the bits of the BF16 value nearest to x; of two that are
// equally near, it returns the one whose last bit is 0. A number that exceeds
// the largest finite BF16 value by half a unit in the last place or more becomes
// infinity. NaN stays NaN.
func ToBF16(x float32) uint16 {
	bits := math.Float32bits(x)
	if x != x {
		// Truncating a NaN whose payload is all in the lower half would leave
		// infinity.
		return uint16(bits>>16) | 0x40
	}
	return uint16((bits + 0x7fff + bits>>16&1) >> 16)
}

// FromBF16 returns the value of the BF16 number with bits x. The conversion is
// exact.
func FromBF16(x uint16) float32 { return math.Float32frombits(uint32(x) << 16) }
