package memory

import "testing"

func TestFragments(t *testing.T) {
	some := Fragments{Pieces: 3 * GiB, Number: 40, Largest: 100 * MiB, Sizes: []PieceSizes{{Below: MiB, Number: 10, Bytes: 5 * MiB}, {Below: 100 * MiB, Number: 30, Bytes: 3*GiB - 5*MiB}}, Pages: 2 * GiB}
	for name, c := range map[string]struct {
		change    func(f *Fragments)
		requested Bytes
		free      Bytes
		would     bool
		text      string
	}{
		"they would have held":         {nil, 2 * GiB, 0, true, "in 40 pieces, 3 GiB of it in 30 of less than 100 MiB, the largest block 100 MiB"},
		"with what is free":            {nil, 2*GiB + 5, 5, true, ""},
		"not so much":                  {nil, 2*GiB + 1, 0, false, ""},
		"a block was there":            {nil, 100 * MiB, 0, false, ""},
		"expandable already":           {func(f *Fragments) { f.Expandable = true }, 2 * GiB, 0, false, ""},
		"the request is not known":     {nil, 0, 0, false, ""},
		"some was given back since":    {func(f *Fragments) { f.Freed = GiB }, 2 * GiB, 0, false, "in 40 pieces, 3 GiB of it in 30 of less than 100 MiB"},
		"and enough without that":      {func(f *Fragments) { f.Freed = GiB }, GiB, 0, true, ""},
		"the largest may be the freed": {func(f *Fragments) { f.Freed, f.Largest = GiB, 3*GiB/2 }, GiB, 0, true, ""},
		"one piece":                    {func(f *Fragments) { f.Number, f.Sizes = 1, nil }, 2 * GiB, 0, true, "in 1 piece, the largest block 100 MiB"},
		"the largest size":             {func(f *Fragments) { f.Sizes = []PieceSizes{{Number: 2, Bytes: 3 * GiB}} }, 2 * GiB, 0, true, "in 40 pieces, 3 GiB of it in the 2 largest, the largest block 100 MiB"},
	} {
		f := some
		if c.change != nil {
			c.change(&f)
		}
		if got := f.WouldHold(c.requested, c.free); got != c.would {
			t.Errorf("%s: %v", name, got)
		}
		if c.text != "" && f.String() != c.text {
			t.Errorf("%s: %s", name, f)
		}
	}
	expandable := Fragments{Expandable: true}
	for want, got := range map[string]string{
		"set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True":                                                                                                         (*Fragments)(nil).Hint(GiB, 0),
		"set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, which may put pieces together":                                                                          some.Hint(3*GiB, 0),
		"set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, which would have held it: at least 2 GiB of the pieces are whole pages, which can then be put together": some.Hint(GiB, 0),
		"": expandable.Hint(GiB, 0),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestPiecesAreEvidence checks that a verdict of fragmentation needs pieces that together would have
// been enough, where it is known how free memory lies.
func TestPiecesAreEvidence(t *testing.T) {
	of := func(pieces Bytes) Evidence {
		return Evidence{Failure: OutOfMemoryError{Requested: 3 * GiB, Phase: PhaseForward, Micro: 8, Stats: Stats{Capacity: 24 * GiB, Reserved: 24 * GiB, Allocated: 20 * GiB},
			Fragments: &Fragments{Pieces: pieces, Number: 9, Largest: GiB, Sizes: []PieceSizes{{Number: 9, Bytes: pieces}}}}}
	}
	for pieces, want := range map[Bytes]Cause{3*GiB - 1: Batch, 3 * GiB: Fragmentation, 9 * GiB: Fragmentation} {
		if v := Diagnose(of(pieces)); v.Cause != want {
			t.Errorf("%v: %v", pieces, v)
		}
	}
	if v := Diagnose(of(3 * GiB)); v.Why != "3 GiB asked for while 0 B was free and 3 GiB reserved but unused, in 9 pieces, 3 GiB of it in the 9 largest, the largest block 1 GiB" {
		t.Errorf("%q", v.Why)
	}
}
