package memory

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestDivide(t *testing.T) {
	tensors := map[Kind]Bytes{Weights: 10, Kept: 20, Pieces: 4, Cache: 6, "no such kind": 99}
	seen := &Seen{Total: 100, Free: 30, Driver: 2, Self: 47, Others: []Share{{Kind: Others, Bytes: 18, PID: 7, Name: "python"}}}
	python := Share{Kind: Others, Bytes: 18, PID: 7, Name: "python"}
	known := []Share{{Kind: Weights, Bytes: 10}, {Kind: Kept, Bytes: 20}, {Kind: Pieces, Bytes: 4}, {Kind: Cache, Bytes: 6}}
	for name, c := range map[string]struct {
		held  Held
		seen  *Seen
		total Bytes
		want  []Share
	}{
		"all is known":                  {Held{Device: "cuda:0", Kinds: tensors, Total: 98, Free: 30, Reserved: 44}, seen, 100, slices.Concat(known, []Share{{Kind: Libraries, Bytes: 3}}, []Share{python}, []Share{{Kind: Driver, Bytes: 2}, {Kind: Nameless, Bytes: 7}, {Kind: Unused, Bytes: 30}})},
		"the driver says nothing":       {Held{Device: "cuda:0", Kinds: tensors, Total: 98, Free: 30, Reserved: 44}, nil, 98, slices.Concat(known, []Share{{Kind: Nameless, Bytes: 28}, {Kind: Unused, Bytes: 30}})},
		"which process is not known":    {Held{Device: "cuda:0", Kinds: tensors, Total: 98, Free: 30, Reserved: 44}, &Seen{Total: 100, Free: 30, Driver: -1, Self: -1}, 100, slices.Concat(known, []Share{{Kind: Nameless, Bytes: 30}, {Kind: Unused, Bytes: 30}})},
		"the driver has no amounts":     {Held{Device: "cuda:0", Kinds: tensors, Total: 98, Free: 30, Reserved: 44}, &Seen{Total: -1, Free: -1, Driver: -1, Self: 50}, 98, slices.Concat(known, []Share{{Kind: Libraries, Bytes: 6}, {Kind: Nameless, Bytes: 22}, {Kind: Unused, Bytes: 30}})},
		"the host":                      {Held{Device: OnHost, Kinds: tensors, Total: 90, Base: 35}, nil, 90, slices.Concat(known, []Share{{Kind: Libraries, Bytes: 35}, {Kind: Nameless, Bytes: 15}})},
		"the host, all but the base":    {Held{Device: OnHost, Kinds: tensors, Total: 60, Base: 35}, nil, 60, slices.Concat(known, []Share{{Kind: Libraries, Bytes: 20}})},
		"tensors that a file backs":     {Held{Device: OnHost, Kinds: tensors, Total: 25, Base: 35}, nil, 40, known},
		"the others have grown since":   {Held{Device: "cuda:0", Kinds: tensors, Reserved: 44}, &Seen{Total: 100, Free: 50, Self: 45, Others: []Share{{Kind: Others, Bytes: 18, PID: 7, Name: "python"}}}, 100, slices.Concat(known, []Share{{Kind: Libraries, Bytes: 1}}, []Share{{Kind: Others, Bytes: 9, PID: 7, Name: "python"}}, []Share{{Kind: Unused, Bytes: 50}})},
		"nothing":                       {Held{Device: "cuda:0"}, nil, 0, nil},
		"the allocator more than it is": {Held{Device: "cuda:0", Kinds: tensors, Total: 98, Free: 30, Reserved: 60}, seen, 100, slices.Concat(known, []Share{python}, []Share{{Kind: Driver, Bytes: 2}, {Kind: Nameless, Bytes: 10}, {Kind: Unused, Bytes: 30}})},
	} {
		b := Divide(c.held, c.seen)
		if b.Total != c.total || !slices.Equal(b.Shares, c.want) {
			t.Errorf("%s: %v %v, want %v %v", name, b.Total, b.Shares, c.total, c.want)
		}
	}
}

// TestSharesAddUp checks that the shares add up to the total, that none is negative, and that
// tensors are never counted for less than they are, whatever the figures.
func TestSharesAddUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		some := func(name string) Bytes { return Bytes(rapid.Int64Range(-1, 1<<40).Draw(t, name)) }
		h := Held{Device: rapid.SampledFrom([]string{OnHost, "cuda:0"}).Draw(t, "device"), Kinds: map[Kind]Bytes{}, Total: some("total"), Free: some("free"), Reserved: some("reserved"), Base: some("base")}
		tensors := Bytes(0)
		for _, k := range kinds[:slices.Index(kinds, Libraries)] {
			if n := some(string(k)); n > 0 {
				h.Kinds[k] = n
				tensors += n
			}
		}
		var seen *Seen
		if rapid.Bool().Draw(t, "seen") {
			seen = &Seen{Total: some("all"), Free: some("unused"), Driver: some("driver"), Self: some("self")}
			for range rapid.IntRange(0, 3).Draw(t, "others") {
				seen.Others = append(seen.Others, Share{Kind: Others, Bytes: some("other")})
			}
		}
		b := Divide(h, seen)
		sum, counted := Bytes(0), Bytes(0)
		for _, s := range b.Shares {
			if s.Bytes <= 0 {
				t.Fatalf("%v", b)
			}
			sum += s.Bytes
			if h.Kinds[s.Kind] > 0 {
				counted += s.Bytes
			}
		}
		if sum != b.Total || counted != tensors || b.Used()+b.Of(Unused) != b.Total {
			t.Fatalf("%v add up to %v, and %v of %v are counted: %v", b.Total, sum, counted, tensors, b)
		}
	})
}

func TestBreakdownInWords(t *testing.T) {
	b := Breakdown{Device: "cuda:0", PID: 12, Step: 40, When: WhenAsked, Total: 8 * GiB, Shares: []Share{{Kind: Weights, Bytes: GiB}, {Kind: Kept, Bytes: 3 * GiB},
		{Kind: Others, Bytes: 2 * GiB, PID: 7, Name: "python"}, {Kind: Others, Bytes: MiB, PID: 8}, {Kind: Unused, Bytes: 2*GiB - MiB}}}
	shares := ": 6 GiB in use; 3 GiB kept results, graphs and inputs, 2 GiB python (pid 7), 1 GiB weights, 1 MiB pid 8"
	for when, want := range map[When]string{
		WhenAsked: "memory of cuda:0, as process 12 uses it, after step 40",
		AtGrowth:  "memory of cuda:0, as process 12 uses it, after step 40, when memory was seen to grow",
		AtFailure: "memory of cuda:0, as process 12 uses it, when step 40 ran out of memory",
	} {
		if b.When = when; b.String() != want+shares {
			t.Errorf("%s: %v", when, b)
		}
	}
	if b.Device = OnHost; b.Where() != "memory of process 12 on the host" {
		t.Errorf("%v", b)
	}
}
