package device

import "math"

// ToBF16 is the BF16 nearest to x; of two equally near, it is the one whose last
// bit is 0. A number beyond the largest BF16 by half a step or more becomes
// infinity; NaN stays NaN.
func ToBF16(x float32) uint16 {
	bits := math.Float32bits(x)
	if x != x {
		// Truncating a NaN whose payload is all in the lower half would leave
		// infinity.
		return uint16(bits>>16) | 0x40
	}
	return uint16((bits + 0x7fff + bits>>16&1) >> 16)
}

// FromBF16 is the value of x, which every float32 can hold.
func FromBF16(x uint16) float32 { return math.Float32frombits(uint32(x) << 16) }
