package memory

import "strings"

// A Card is a GPU that can be bought or hired, with the memory that it offers to a program.
type Card struct {
	Name   string
	Memory Bytes
}

// cards are GPUs by the names that people use. Each has no more than what PyTorch reports as its total capacity, in whole tenths of a
// GiB: drivers take different amounts for themselves, and error correction takes a sixteenth of some.
var cards = []Card{
	{"a10", tenths(219)}, {"a100-40", tenths(393)}, {"a100-80", tenths(791)}, {"a40", tenths(443)}, {"a6000", tenths(444)},
	{"b200", tenths(1783)}, {"h100", tenths(790)}, {"h200", tenths(1397)}, {"l4", tenths(219)}, {"l40s", tenths(443)},
	{"p100", tenths(158)}, {"t4", tenths(145)}, {"v100-16", tenths(157)}, {"v100-32", tenths(317)},
	{"2080ti", tenths(105)}, {"3060", tenths(116)}, {"3080", tenths(96)}, {"3090", tenths(234)},
	{"4080", tenths(155)}, {"4090", tenths(234)}, {"5090", tenths(313)},
}

// tenths returns n tenths of a GiB, rounded down.
func tenths(n int64) Bytes { return Bytes(n) * GiB / 10 }

// FindCard returns the card with a name, in small or capital letters. known is false if there is none.
func FindCard(name string) (card Card, known bool) {
	for _, c := range cards {
		if strings.EqualFold(c.Name, strings.TrimSpace(name)) {
			return c, true
		}
	}
	return Card{}, false
}

// CardNames returns the names of all cards.
func CardNames() []string {
	names := make([]string, len(cards))
	for i, c := range cards {
		names[i] = c.Name
	}
	return names
}
