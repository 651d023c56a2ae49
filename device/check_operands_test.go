package device

import (
	"fmt"
	"math"
	"strings"
	"testing"
)

// checked is the check of one operation with operands and dimensions that pass.
type checked struct {
	op       string
	operands string // "f name length" or "i name length", separated by commas
	dims     string // names
	sizes    []int
	check    func(t []Tensor, n []int)
}

var allChecks = []checked{
	{"Upload", "f dst 5", "", nil, func(t []Tensor, _ []int) { CheckUpload(t[0], 5) }},
	{"UploadInts", "i dst 5", "", nil, func(t []Tensor, _ []int) { CheckUploadInts(t[0], 5) }},
	{"Download", "f src 5", "", nil, func(t []Tensor, _ []int) { CheckDownload(t[0], 5) }},
	{"Copy", "f dst 5,f src 5", "", nil, func(t []Tensor, _ []int) { CheckCopy(t[0], t[1]) }},
	{"Copy", "i dst 5,i src 5", "", nil, func(t []Tensor, _ []int) { CheckCopy(t[0], t[1]) }},
	{"MatMul", "f c 6,f a 8,f b 12", "M N K", []int{2, 3, 4}, func(t []Tensor, n []int) {
		MatMul{M: n[0], N: n[1], K: n[2], Beta: 1}.Check(t[0], t[1], t[2])
	}},
	{"AddBias", "f x 6,f b 3", "rows cols", []int{2, 3}, func(t []Tensor, n []int) { CheckAddBias(t[0], t[1], n[0], n[1]) }},
	{"BiasGrad", "f db 3,f dy 6", "rows cols", []int{2, 3}, func(t []Tensor, n []int) { CheckBiasGrad(t[0], t[1], n[0], n[1]) }},
	{"Fill", "f x 5", "", nil, func(t []Tensor, _ []int) { CheckFill(t[0]) }},
	{"Add", "f y 5,f x 5", "", nil, func(t []Tensor, _ []int) { CheckAdd(t[0], t[1]) }},
	{"GELU", "f y 5,f x 5", "", nil, func(t []Tensor, _ []int) { CheckGELU(t[0], t[1]) }},
	{"GELUGrad", "f dx 5,f x 5,f dy 5", "", nil, func(t []Tensor, _ []int) { CheckGELUGrad(t[0], t[1], t[2]) }},
	{"Dropout", "f y 6,f x 6,i samples 2", "Each", []int{3}, func(t []Tensor, n []int) { Dropout{Each: n[0]}.Check(t[0], t[1], t[2]) }},
	{"Embed", "f out 12,i tok 4,f tokens 15,f positions 6", "B T C V", []int{2, 2, 3, 5}, func(t []Tensor, n []int) {
		Embed{n[0], n[1], n[2], n[3]}.Check(t[0], t[1], t[2], t[3])
	}},
	{"EmbedGrad", "f dtokens 15,f dpositions 6,f dout 12,i tok 4", "B T C V", []int{2, 2, 3, 5}, func(t []Tensor, n []int) {
		Embed{n[0], n[1], n[2], n[3]}.CheckGrad(t[0], t[1], t[2], t[3])
	}},
	{"LayerNorm", "f out 6,f mean 2,f rstd 2,f x 6,f gamma 3,f beta 3", "rows cols", []int{2, 3}, func(t []Tensor, n []int) {
		CheckLayerNorm(t[0], t[1], t[2], t[3], t[4], t[5], n[0], n[1])
	}},
	{"LayerNormGrad", "f dx 6,f dgamma 3,f dbeta 3,f dy 6,f x 6,f gamma 3,f mean 2,f rstd 2", "rows cols", []int{2, 3}, func(t []Tensor, n []int) {
		CheckLayerNormGrad(t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], n[0], n[1])
	}},
	{"Attention", "f out 210,f lse 30,f qkv 630", "B T H D", []int{2, 5, 3, 7}, func(t []Tensor, n []int) {
		Attention{n[0], n[1], n[2], n[3]}.Check(t[0], t[1], t[2])
	}},
	{"AttentionGrad", "f dqkv 630,f delta 30,f dout 210,f qkv 630,f out 210,f lse 30", "B T H D", []int{2, 5, 3, 7}, func(t []Tensor, n []int) {
		Attention{n[0], n[1], n[2], n[3]}.CheckGrad(t[0], t[1], t[2], t[3], t[4], t[5])
	}},
	{"CrossEntropy", "f loss 2,f logits 6,i target 2", "rows classes", []int{2, 3}, func(t []Tensor, n []int) {
		CheckCrossEntropy(t[0], t[1], t[2], n[0], n[1])
	}},
	{"Sum", "f dst 1,f x 5", "", nil, func(t []Tensor, _ []int) { CheckSum(t[0], t[1]) }},
	{"SumSquares", "f dst 1,f x 5", "", nil, func(t []Tensor, _ []int) { CheckSumSquares(t[0], t[1]) }},
	{"AdamW", "f w 5,f g 5,f m 5,f v 5", "Step", []int{1}, func(t []Tensor, n []int) { AdamW{Step: n[0]}.Check(t[0], t[1], t[2], t[3]) }},
	{"SGD", "f w 5,f g 5,f m 5", "", nil, func(t []Tensor, _ []int) { SGD{}.Check(t[0], t[1], t[2]) }},
}

// anyLength are the operands that alone say how long they are.
var anyLength = map[string]bool{"Fill x": true, "Sum x": true, "SumSquares x": true}

func (c checked) right() (names []string, tensors []Tensor) {
	for _, o := range strings.Split(c.operands, ",") {
		var kind, name string
		t := Tensor{Addr: 512, DType: F32}
		if _, err := fmt.Sscan(o, &kind, &name, &t.Len); err != nil {
			panic(err)
		}
		if kind == "i" {
			t.DType = I32
		}
		names, tensors = append(names, name), append(tensors, t)
	}
	return names, tensors
}

func TestRightOperandsPassWithoutGarbage(t *testing.T) {
	for _, c := range allChecks {
		_, tensors := c.right()
		if n := testing.AllocsPerRun(10, func() { c.check(tensors, c.sizes) }); n != 0 {
			t.Errorf("%s: %v allocations", c.op, n)
		}
	}
}

func TestWrongOperandsPanic(t *testing.T) {
	for _, c := range allChecks {
		names, right := c.right()
		for i, name := range names {
			spoil := func(change func(*Tensor)) string {
				tensors := append([]Tensor(nil), right...)
				change(&tensors[i])
				return panics(t, func() { c.check(tensors, c.sizes) })
			}
			if got, want := spoil(func(x *Tensor) { *x = Tensor{} }), "shape: "+c.op+": "+name+" is no tensor"; got != want {
				t.Errorf("panic %q, want %q", got, want)
			}
			got := []string{spoil(func(x *Tensor) { x.DType = F32 + I32 - x.DType })}
			if !anyLength[c.op+" "+name] {
				got = append(got, spoil(func(x *Tensor) { x.Len++ }), spoil(func(x *Tensor) { x.Len-- }))
			}
			for _, text := range got {
				if !strings.HasPrefix(text, "shape: "+c.op+": ") || !strings.Contains(text, " holds ") {
					t.Errorf("%s, %s spoilt: panic %q", c.op, name, text)
				}
			}
		}
	}
}

func TestWrongDimensionsPanic(t *testing.T) {
	for _, c := range allChecks {
		_, tensors := c.right()
		for i, name := range strings.Fields(c.dims) {
			for _, wrong := range []int{0, -1, math.MinInt} {
				sizes := append([]int(nil), c.sizes...)
				sizes[i] = wrong
				got := panics(t, func() { c.check(tensors, sizes) })
				if want := fmt.Sprintf("shape: %s: %s is %d: at least 1", c.op, name, wrong); got != want {
					t.Errorf("panic %q, want %q", got, want)
				}
			}
		}
	}
}

func TestWrongNumbersPanic(t *testing.T) {
	one, id := Tensor{512, 1, F32}, Tensor{512, 1, I32}
	nan := float32(math.NaN())
	for _, beta := range []float32{2, -1, 0.5, nan} {
		got := panics(t, func() { MatMul{M: 1, N: 1, K: 1, Beta: beta}.Check(one, one, one) })
		if want := fmt.Sprintf("shape: MatMul: beta is %v: 0 or 1", beta); got != want {
			t.Errorf("panic %q, want %q", got, want)
		}
	}
	for _, p := range []float32{1, 1.5, -0.1, nan} {
		got := panics(t, func() { Dropout{P: p, Each: 1}.Check(one, one, id) })
		if want := fmt.Sprintf("shape: Dropout: P is %v: in [0, 1)", p); got != want {
			t.Errorf("panic %q, want %q", got, want)
		}
	}
}

// TestPositions: a table may have more rows than the sequence has positions,
// but whole ones, and not fewer.
func TestPositions(t *testing.T) {
	s := Embed{B: 1, T: 2, C: 3, V: 1}
	out, tok, tokens := Tensor{512, 6, F32}, Tensor{512, 2, I32}, Tensor{512, 3, F32}
	table := func(n int) Tensor { return Tensor{512, n, F32} }
	s.Check(out, tok, tokens, table(9))
	s.CheckGrad(tokens, table(9), out, tok)
	for _, n := range []int{0, 3, 7, 8} {
		why := fmt.Sprintf("positions holds %d elements: a multiple of C = 3, at least T·C = 6", n)
		if got, want := panics(t, func() { s.Check(out, tok, tokens, table(n)) }), "shape: Embed: "+why; got != want {
			t.Errorf("panic %q, want %q", got, want)
		}
		if got, want := panics(t, func() { s.CheckGrad(tokens, table(n), out, tok) }), "shape: EmbedGrad: d"+why; got != want {
			t.Errorf("panic %q, want %q", got, want)
		}
	}
}
