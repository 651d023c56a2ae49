package model

import (
	"hash/fnv"
	"math"
	"sync"
)

// fill writes the initial values of p to dst. Each value depends only on the
// seed, the parameter's name and the value's index. So adding parameters, or
// building them in another order, does not change the values of the others.
func (p *parameter) fill(dst []float32, seed uint64) {
	h := fnv.New64a()
	h.Write([]byte(p.name))
	key := mix(seed) ^ mix(h.Sum64())
	var pieces sync.WaitGroup
	for from := 0; from < len(dst); from += pieceOfFill {
		pieces.Go(func() {
			for i := from; i < min(len(dst), from+pieceOfFill); i++ {
				dst[i] = p.value
				if p.std > 0 {
					dst[i] = float32(p.std * normal(key, uint64(i)))
				}
			}
		})
	}
	pieces.Wait()
}

// pieceOfFill is the number of values that one goroutine writes, which takes a
// few milliseconds.
const pieceOfFill = 1 << 16

// normal returns number i of the sequence of standard normal random numbers
// that key determines. It uses the method of Box and Muller (1958).
func normal(key, i uint64) float64 {
	u := 1 - unit(mix(key+2*i)) // in (0, 1], so that its logarithm is finite
	v := unit(mix(key + 2*i + 1))
	return math.Sqrt(-2*math.Log(u)) * math.Cos(2*math.Pi*v)
}

// unit maps the upper 53 bits of x to [0, 1).
func unit(x uint64) float64 { return float64(x>>11) / (1 << 53) }

// mix adds the increment of SplitMix64 to x and applies its finaliser (Steele,
// Lea and Flood, 2014).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
