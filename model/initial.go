package model

import (
	"hash/fnv"
	"math"
	"sync"
)

// fill writes the initial values of p. They are a function of the seed, the
// parameter's name and the index alone: adding a parameter, or building them in
// another order, changes none of the others.
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

// pieceOfFill is how many values a goroutine writes: a few milliseconds' worth.
const pieceOfFill = 1 << 16

// normal is draw i of the standard normal distribution under key, by Box and
// Muller (1958).
func normal(key, i uint64) float64 {
	u := 1 - unit(mix(key+2*i)) // in (0, 1], so that its logarithm is finite
	v := unit(mix(key + 2*i + 1))
	return math.Sqrt(-2*math.Log(u)) * math.Cos(2*math.Pi*v)
}

// unit maps the upper 53 bits of x to [0, 1).
func unit(x uint64) float64 { return float64(x>>11) / (1 << 53) }

// mix is the finaliser of SplitMix64 (Steele, Lea and Flood, 2014) after one
// increment.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
