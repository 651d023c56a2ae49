package data

// Order maps a position of a run's endless stream of samples to a sample of the
// set: a permutation of the set per epoch, drawn from (Seed, epoch) alone. It is
// a value, safe for concurrent use, and takes no memory however large the set.
type Order struct {
	Seed uint64
	Len  int // samples in the set; at least 1
}

// At is the epoch of position pos ≥ 0, counted from 0, and the index in the set
// of the sample there. It is a pure function.
func (o Order) At(pos int64) (epoch int64, index int) {
	epoch = pos / int64(o.Len)
	return epoch, o.permute(uint64(epoch), uint64(pos%int64(o.Len)))
}

// permute is a keyed permutation of [0, Len): a Feistel network over the
// smallest even number of bits that holds Len, walked until it lands inside
// (Black and Rogaway, 2002, "Ciphers with arbitrary finite domains", cycle
// walking). The domain is under four times Len, so the walk is short.
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

// rounds is more than the four that make a Feistel network indistinguishable
// from a random permutation for ideal round functions (Luby and Rackoff, 1988):
// small sets have halves of few bits, where four leave visible patterns.
const rounds = 8

func feistel(x, key uint64, half uint) uint64 {
	mask := uint64(1)<<half - 1
	left, right := x>>half, x&mask
	for r := range uint64(rounds) {
		left, right = right, left^mix(mix(key+r)+right)>>(64-half)
	}
	return left<<half | right
}

// mix is the finaliser of SplitMix64 (Steele, Lea and Flood, 2014) after one
// increment: every input bit affects every output bit.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
