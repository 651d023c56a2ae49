// Package data holds what a native model is trained on: fixed collections of
// samples ([Set]) and the order in which a run goes through them ([Order]).
//
// Start with one of [OpenText], [OpenIDX] and [NewBlobs]:
//
//	set, err := data.OpenText(data.TextOptions{Path: "book.txt", Context: 64})
//	order := data.Order{Seed: 1, Len: set.Len()}
//	sample := set.Shape().New()
//	_, index := order.At(812)
//	err = set.Sample(index, sample)
//
// A set never changes once it is open. Its fingerprint shows whether another set
// has the same contents, so that a run is not continued with other data. The
// order is a pure function of the position in the run's stream of samples. So
// position 812 is the same sample in every attempt, however the steps before it
// were cut into micro-batches.
package data
