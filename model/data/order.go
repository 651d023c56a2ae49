package data

// Order maps each position of a run's endless stream of samples to a sample of
// the set. Every epoch is a permutation of the set, drawn from (Seed, epoch)
// alone. An Order is a plain value, is safe for concurrent use, and takes no
// memory, however large the set is.
type Order struct {
	Seed uint64
	Len  int // samples in the set; at least 1
}

// At returns the epoch that position pos is in, counted from 0, and the index, within the
// set, of the sample at that position. pos must be at least 0. At is a pure function.
func (o Order) At(pos int64) (epoch int64, index int) {
	epoch = pos / int64(o.Len)
	return epoch, o.permute(uint64(epoch), uint64(pos%int64(o.Len)))
}

// permute applies the permutation of an epoch to x, which must be in [0, Len). The
// permutation is a Feistel network on the smallest even number of bits that can hold every
// index, applied repeatedly until the result is below Len (cycle walking; Black and
// Rogaway, 2002, "Ciphers with arbitrary finite domains"). The domain is at most four times
// Len, so this takes few repetitions.
func (o Order) permute(epoch, x uint64) int {
	half := uint(1)
	for uint64(1)<<(2*half) < uint64(o.Len) {
		half++
	}
	key := mix(mix(o.Seed) + epoch)
	for {
		x = feistel(x, key, half)
		if x < uint64(o.Len) {
			return int(x)
		}
	}
}

// rounds is the number of rounds of the Feistel network. With ideal round
// functions, four make it indistinguishable from a random permutation (Luby and
// Rackoff, 1988). But in small sets the halves have few bits, and four rounds
// leave visible patterns.
const rounds = 8

func feistel(x, key uint64, half uint) uint64 {
	mask := uint64(1)<<half - 1
	left, right := x>>half, x&mask
	for r := range uint64(rounds) {
		left, right = right, left^mix(mix(key+r)+right)>>(64-half)
	}
	return left<<half | right
}

// mix adds the increment of SplitMix64 to x and applies its finaliser (Steele,
// Lea and Flood, 2014). Every input bit affects every output bit.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
