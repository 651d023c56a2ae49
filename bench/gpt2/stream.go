package main

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"headroom/model/data"
)

// stream holds the samples of a run, in the order in which the run takes them. They
// are generated from a seed by integer arithmetic alone, so that stream.py
// generates the same samples.
//
// Tokens are skewed towards small numbers, and about half of them are determined by
// the preceding token, so that there is something to learn from the first step on.
type stream struct {
	shape  data.Shape
	tokens []int32 // samples × (context+1)
	number []int   // the stream's number of the sample at each index of the set
	name   string
}

// newStream returns a stream of samples of context+1 tokens each. Tokens are
// below vocab, which must be at most 2²⁰.
func newStream(seed uint64, samples, context, vocab int) *stream {
	s := &stream{
		shape:  data.Shape{Tokens: context, Classes: vocab},
		tokens: make([]int32, samples*(context+1)),
		number: make([]int, samples),
		name:   fmt.Sprintf("gpt2bench-%d-%d-%d-%d", seed, samples, context, vocab),
	}
	for i := range samples {
		fill(s.tokens[i*(context+1):][:context+1], mix(seed)+uint64(i)<<32, uint64(vocab))
	}
	// A trainer goes through its set in an order of its own. That order is undone
	// here, so that the run takes samples 0, 1, 2, … and no other code needs to
	// know the order.
	order := data.Order{Seed: seed, Len: samples}
	for position := range samples {
		_, index := order.At(int64(position))
		s.number[index] = position
	}
	return s
}

func fill(tokens []int32, key, vocab uint64) {
	for j := range tokens {
		h := mix(key + uint64(j))
		if j > 0 && h&1 == 0 {
			h = mix(uint64(tokens[j-1]))
		}
		tokens[j] = skewed(h, vocab)
	}
}

// skewed turns the hash h into a number below vocab that is distributed as the
// fourth power of a uniform one.
func skewed(h, vocab uint64) int32 {
	r := h >> 44
	r = r * r >> 20
	r = r * r >> 20
	return int32(r * vocab >> 20)
}

// mix hashes x as SplitMix64 does (Steele, Lea and Flood, 2014): one increment,
// then the finaliser.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Len implements [data.Set].
func (s *stream) Len() int { return len(s.number) }

// Shape implements [data.Set].
func (s *stream) Shape() data.Shape { return s.shape }

// Sample implements [data.Set].
func (s *stream) Sample(i int, dst *data.Sample) error {
	if i < 0 || i >= len(s.number) {
		return fmt.Errorf("sample %d: must be 0 to %d", i, len(s.number)-1)
	}
	row := s.tokens[s.number[i]*(s.shape.Tokens+1):][:s.shape.Tokens+1]
	copy(dst.Tokens, row)
	copy(dst.Targets, row[1:])
	return nil
}

// Fingerprint implements [data.Set].
func (s *stream) Fingerprint() string { return s.name }

// sum returns the CRC-32 of all tokens as little-endian int32. It shows whether two
// runs saw the same data.
func (s *stream) sum() uint32 {
	raw := make([]byte, 0, 4*len(s.tokens))
	for _, t := range s.tokens {
		raw = binary.LittleEndian.AppendUint32(raw, uint32(t))
	}
	return crc32.ChecksumIEEE(raw)
}
