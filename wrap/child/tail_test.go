package child

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
)

func TestTail(t *testing.T) {
	long := strings.Repeat("x", hugeLine)
	for name, c := range map[string]struct {
		size   int
		writes []string // a leading "1:" means that the second stream wrote the rest
		want   string
	}{
		"everything fits":                 {100, []string{"a\n", "b\n"}, "a\nb\n"},
		"the oldest lines go":             {6, []string{"aaa\n", "bb\n", "cc\n"}, "bb\ncc\n"},
		"no part of a line begins it":     {7, []string{"aaa\n", "bb\n", "cc\n"}, "bb\ncc\n"},
		"streams in order":                {100, []string{"a\n", "1:b\n", "c\n"}, "a\nb\nc\n"},
		"a line in pieces stays whole":    {100, []string{"one ", "1:error\n", "line\n"}, "error\none line\n"},
		"what has no end comes last":      {100, []string{"a\nto", "1:b\n", " be"}, "a\nb\nto be"},
		"both have no end":                {100, []string{"out", "1:err"}, "outerr"},
		"a huge line is not waited for":   {3 * hugeLine, []string{long + "y", "1:b\n", "z\n"}, long + "y" + "b\nz\n"},
		"a huge line is cut":              {hugeLine + 4, []string{"a\n" + long + long + "\n"}, "xxx" + long + "\n"},
		"one write of more than the ring": {4, []string{"aa\nbb\ncc\n"}, "cc\n"},
		"bytes of any kind":               {100, []string{"\x00\xff\r\n"}, "\x00\xff\r\n"},
		"nothing":                         {100, nil, ""},
	} {
		kept := newTail(c.size)
		for _, w := range c.writes {
			second, text := 0, w
			if rest, ok := strings.CutPrefix(w, "1:"); ok {
				second, text = 1, rest
			}
			kept.add(second, []byte(text))
		}
		if got := string(kept.bytes()); got != c.want {
			t.Errorf("%s: %.80q (%d bytes), want %.80q (%d)", name, got, len(got), c.want, len(c.want))
		}
	}
}

// TestTailIsASuffix checks that the tail is a suffix of all output, however the output is
// cut into pieces.
func TestTailIsASuffix(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		size := 1 + r.IntN(200)
		kept, all := newTail(size), []byte{}
		for line := range r.IntN(60) {
			text := fmt.Appendf(nil, "line %d%s\n", line, strings.Repeat(".", r.IntN(20)))
			all = append(all, text...)
			cut := r.IntN(len(text))
			kept.add(0, text[:cut])
			kept.add(0, text[cut:])
		}
		got := kept.bytes()
		if !bytes.HasSuffix(all, got) || len(got) > size {
			t.Fatalf("seed %d: %q is no suffix of at most %d bytes", seed, got, size)
		}
		if rest := all[:len(all)-len(got)]; len(rest) > 0 && len(got)+len("line 00....................\n") < size {
			t.Fatalf("seed %d: only %d of %d bytes kept", seed, len(got), size)
		}
	}
}

// TestTailIsConstant checks that the tail allocates almost nothing even if far more is
// written than it keeps.
func TestTailIsConstant(t *testing.T) {
	const size = 256 << 10
	kept, chunk := newTail(size), bytes.Repeat([]byte("0123456789abcde\n"), 4<<10)
	var before, after runtime.MemStats
	kept.add(0, chunk)
	runtime.ReadMemStats(&before)
	for n := range 16 << 10 { // 1 GiB
		kept.add(n%2, chunk[n%16:])
	}
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > size {
		t.Errorf("1 GiB of output allocated %d bytes", grown)
	}
	if got := len(kept.bytes()); got > size || got < size-16 {
		t.Errorf("%d bytes kept of %d", got, size)
	}
}

func BenchmarkTail(b *testing.B) {
	kept, chunk := newTail(256<<10), bytes.Repeat([]byte("0123456789abcde\n"), 4<<10)
	b.SetBytes(int64(len(chunk)))
	for b.Loop() {
		kept.add(0, chunk)
	}
}
