package devicetest

import (
	"fmt"
	"math"
	"slices"

	"headroom/device"
)

// testCopy tests Copy and Upload. It requires every bit to match, because a
// number is either exact in the new type or rounded to nearest.
func testCopy(r *rig) {
	for _, n := range lengths {
		for _, types := range r.pairs() {
			x := r.random(types.in, n)
			want := rounded(types.out, slices.Clone(x))
			r.verify(fmt.Sprintf("%v,%d", types, n), func(r *rig) []result {
				out, up := r.output(types.out, n), r.output(types.out, n)
				r.d.Copy(out, r.input(types.in, x))
				src := narrow(x)
				r.d.Upload(up, src)
				clear(src) // the upload has copied it
				return []result{exact("copy", out, want), exact("upload", up, want)}
			})
		}
	}
}

func testCopyInts(r *rig) {
	r.verify("ints", func(r *rig) []result {
		tok := []int32{4, 0, 3, 1, 2}
		src := slices.Clone(tok)
		from, to := r.ints(make([]int32, 5)), r.ints(make([]int32, 5))
		r.d.UploadInts(from, src)
		clear(src)
		r.d.Copy(to, from)
		out := r.output(device.F32, 5)
		table, place := []float64{10, 11, 12, 13, 14}, make([]float64, 5)
		s := device.Embed{B: 1, T: 5, C: 1, V: 5}
		r.d.Embed(out, to, r.input(device.F32, table), r.input(device.F32, place), s)
		return []result{r.forward("out", out, refEmbed(tok, table, place, s))}
	})
}

// testRounding copies every BF16 value to F32. It also copies to BF16 every F32
// value at which rounding changes direction: the midpoint of two BF16
// neighbours and the values right next to it.
func testRounding(r *rig) {
	all := make([]float32, 1<<16)
	var turns []float32
	for i := range all {
		all[i] = device.FromBF16(uint16(i))
		for _, low := range []uint32{0x7fff, 0x8000, 0x8001} {
			turns = append(turns, math.Float32frombits(uint32(i)<<16|low))
		}
	}
	r.wantCopies("BF16 to F32", device.BF16, device.F32, all, all)
	nearest := make([]float32, len(turns))
	for i, v := range turns {
		nearest[i] = device.FromBF16(device.ToBF16(v))
	}
	r.wantCopies("F32 to BF16", device.F32, device.BF16, turns, nearest)
}

// wantCopies checks two ways of turning x into type out: an upload as type in,
// followed by a copy, and a direct upload. Both must give want. A NaN must stay
// NaN, but not necessarily the same NaN.
func (r *rig) wantCopies(name string, in, out device.DType, x, want []float32) {
	r.Helper()
	from, to, up := r.alloc(len(x), in), r.alloc(len(x), out), r.alloc(len(x), out)
	defer r.d.Free(from)
	defer r.d.Free(to)
	defer r.d.Free(up)
	r.d.Upload(from, x)
	r.d.Copy(to, from)
	r.d.Upload(up, x)
	r.sync()
	copied, uploaded := r.read(to), r.read(up)
	for i, w := range want {
		for how, got := range map[string]float32{"copied": copied[i], "uploaded": uploaded[i]} {
			if math.Float32bits(got) != math.Float32bits(w) && (got == got || w == w) {
				r.Fatalf("%s: %x %s becomes %x, want %x", name, x[i], how, got, w)
			}
		}
	}
}
