package device

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
)

// kinds maps each kind of operand to a function that returns the types that the
// kind allows. The function's argument is the type of the operands of kind "s".
var kinds = map[string]func(same DType) []DType{
	"i": func(DType) []DType { return []DType{I32} },
	"f": func(DType) []DType { return []DType{F32} },
	"a": func(DType) []DType { return []DType{F32, BF16} },      // activations
	"s": func(same DType) []DType { return []DType{same} },      // activations of one type
	"o": func(same DType) []DType { return []DType{F32, same} }, // F32, or the type of the operands of kind "s"
}

// checked is the check of one operation, together with operands and dimensions
// that pass it.
type checked struct {
	op       string
	operands string // "kind name length", separated by commas; see kinds
	dims     string // names, separated by spaces
	sizes    []int
	check    func(t []Tensor, n []int)
}

var allChecks = []checked{
	{"Upload", "a dst 5", "", nil, func(t []Tensor, _ []int) { CheckUpload(t[0], 5) }},
	{"UploadInts", "i dst 5", "", nil, func(t []Tensor, _ []int) { CheckUploadInts(t[0], 5) }},
	{"Download", "a src 5", "", nil, func(t []Tensor, _ []int) { CheckDownload(t[0], 5) }},
	{"Copy", "a dst 5,a src 5", "", nil, func(t []Tensor, _ []int) { CheckCopy(t[0], t[1]) }},
	{"Copy", "i dst 5,i src 5", "", nil, func(t []Tensor, _ []int) { CheckCopy(t[0], t[1]) }},
	{"MatMul", "o c 6,s a 8,s b 12", "M N K", []int{2, 3, 4}, func(t []Tensor, n []int) {
		MatMul{M: n[0], N: n[1], K: n[2], Beta: 1}.Check(t[0], t[1], t[2])
	}},
	{"AddBias", "a x 6,f b 3", "rows cols", []int{2, 3}, func(t []Tensor, n []int) { CheckAddBias(t[0], t[1], n[0], n[1]) }},
	{"BiasGrad", "f db 3,a dy 6", "rows cols", []int{2, 3}, func(t []Tensor, n []int) { CheckBiasGrad(t[0], t[1], n[0], n[1]) }},
	{"Fill", "f x 5", "", nil, func(t []Tensor, _ []int) { CheckFill(t[0]) }},
	{"Add", "a y 5,a x 5", "", nil, func(t []Tensor, _ []int) { CheckAdd(t[0], t[1]) }},
	{"GELU", "s y 5,s x 5", "", nil, func(t []Tensor, _ []int) { CheckGELU(t[0], t[1]) }},
	{"GELUGrad", "s dx 5,s x 5,s dy 5", "", nil, func(t []Tensor, _ []int) { CheckGELUGrad(t[0], t[1], t[2]) }},
	{"Dropout", "a y 6,a x 6,i samples 2", "Each", []int{3}, func(t []Tensor, n []int) { Dropout{Each: n[0]}.Check(t[0], t[1], t[2]) }},
	{"Embed", "f out 12,i tok 4,f tokens 15,f positions 6", "B T C V", []int{2, 2, 3, 5}, func(t []Tensor, n []int) {
		Embed{n[0], n[1], n[2], n[3]}.Check(t[0], t[1], t[2], t[3])
	}},
	{"EmbedGrad", "f dtokens 15,f dpositions 6,f dout 12,i tok 4", "B T C V", []int{2, 2, 3, 5}, func(t []Tensor, n []int) {
		Embed{n[0], n[1], n[2], n[3]}.CheckGrad(t[0], t[1], t[2], t[3])
	}},
	{"LayerNorm", "a out 6,f mean 2,f rstd 2,a x 6,f gamma 3,f beta 3", "rows cols", []int{2, 3}, func(t []Tensor, n []int) {
		CheckLayerNorm(t[0], t[1], t[2], t[3], t[4], t[5], n[0], n[1])
	}},
	{"LayerNormGrad", "s dx 6,f dgamma 3,f dbeta 3,s dy 6,a x 6,f gamma 3,f mean 2,f rstd 2", "rows cols", []int{2, 3}, func(t []Tensor, n []int) {
		CheckLayerNormGrad(t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], n[0], n[1])
	}},
	{"Attention", "s out 210,f lse 30,s qkv 630", "B T H D", []int{2, 5, 3, 7}, func(t []Tensor, n []int) {
		Attention{n[0], n[1], n[2], n[3]}.Check(t[0], t[1], t[2])
	}},
	{"AttentionGrad", "s dqkv 630,f delta 30,s dout 210,s qkv 630,s out 210,f lse 30", "B T H D", []int{2, 5, 3, 7}, func(t []Tensor, n []int) {
		Attention{n[0], n[1], n[2], n[3]}.CheckGrad(t[0], t[1], t[2], t[3], t[4], t[5])
	}},
	{"CrossEntropy", "f loss 2,a logits 6,i target 2", "rows classes", []int{2, 3}, func(t []Tensor, n []int) {
		CheckCrossEntropy(t[0], t[1], t[2], n[0], n[1])
	}},
	{"Sum", "f dst 1,f x 5", "", nil, func(t []Tensor, _ []int) { CheckSum(t[0], t[1]) }},
	{"SumSquares", "f dst 1,f x 5", "", nil, func(t []Tensor, _ []int) { CheckSumSquares(t[0], t[1]) }},
	{"AdamW", "f w 5,f g 5,f m 5,f v 5", "Step", []int{1}, func(t []Tensor, n []int) { AdamW{Step: n[0]}.Check(t[0], t[1], t[2], t[3]) }},
	{"SGD", "f w 5,f g 5,f m 5", "", nil, func(t []Tensor, _ []int) { SGD{}.Check(t[0], t[1], t[2]) }},
}

// anyLength is the set of operands that may have any length. Each key is the
// operation's name followed by the operand's name.
var anyLength = map[string]bool{"Fill x": true, "Sum x": true, "SumSquares x": true}

// operand is one operand of an operation: its kind, its name, and a tensor that
// fits. The tensor is F32 unless the operand must be I32.
type operand struct {
	kind, name string
	right      Tensor
}

func (c checked) right() (all []operand, tensors []Tensor) {
	for _, text := range strings.Split(c.operands, ",") {
		o := operand{right: Tensor{Addr: 512}}
		if _, err := fmt.Sscan(text, &o.kind, &o.name, &o.right.Len); err != nil {
			panic(err)
		}
		o.right.DType = kinds[o.kind](F32)[0]
		all, tensors = append(all, o), append(tensors, o.right)
	}
	return all, tensors
}

func TestRightOperandsPassWithoutGarbage(t *testing.T) {
	for _, c := range allChecks {
		_, tensors := c.right()
		if n := testing.AllocsPerRun(10, func() { c.check(tensors, c.sizes) }); n != 0 {
			t.Errorf("%s: %v allocations", c.op, n)
		}
	}
}

// TestOperandTypes tries every combination of operand types with every
// operation, and checks that only the allowed combinations pass.
func TestOperandTypes(t *testing.T) {
	for _, c := range allChecks {
		_, tensors := c.right()
		var assign func(i int)
		assign = func(i int) {
			if i == len(tensors) {
				c.wantTypes(t, tensors)
				return
			}
			for _, d := range []DType{F32, I32, BF16} {
				tensors[i].DType = d
				assign(i + 1)
			}
		}
		assign(0)
	}
}

// wantTypes tests that c.check passes if and only if some entry of allChecks
// for the operation allows the tensors' types.
func (c checked) wantTypes(t *testing.T, tensors []Tensor) {
	t.Helper()
	want := slices.ContainsFunc(allChecks, func(o checked) bool {
		return o.op == c.op && (o.allows(F32, tensors) || o.allows(BF16, tensors))
	})
	var err error
	func() {
		defer func() {
			if shape, ok := recover().(*ShapeError); ok {
				err = shape
			}
		}()
		c.check(tensors, c.sizes)
	}()
	if (err == nil) != want {
		t.Errorf("%s of %v: %v; want it to pass: %v", c.op, tensors, err, want)
	}
}

// allows reports whether tensors have types that c's kinds allow, if operands
// of kind "s" are of type same.
func (c checked) allows(same DType, tensors []Tensor) bool {
	operands, _ := c.right()
	for i, o := range operands {
		if !slices.Contains(kinds[o.kind](same), tensors[i].DType) {
			return false
		}
	}
	return true
}

func TestWrongOperandsPanic(t *testing.T) {
	for _, c := range allChecks {
		operands, right := c.right()
		for i, o := range operands {
			spoil := func(change func(*Tensor)) string {
				tensors := append([]Tensor(nil), right...)
				change(&tensors[i])
				return panics(t, func() { c.check(tensors, c.sizes) })
			}
			if got, want := spoil(func(x *Tensor) { *x = Tensor{} }), "shape: "+c.op+": "+o.name+" is not a tensor"; got != want {
				t.Errorf("panic %q, want %q", got, want)
			}
			if anyLength[c.op+" "+o.name] {
				continue
			}
			for _, text := range []string{spoil(func(x *Tensor) { x.Len++ }), spoil(func(x *Tensor) { x.Len-- })} {
				if !strings.HasPrefix(text, "shape: "+c.op+": ") || !strings.Contains(text, " holds ") {
					t.Errorf("%s, %s spoilt: panic %q", c.op, o.name, text)
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
				if want := fmt.Sprintf("shape: %s: %s is %d: must be at least 1", c.op, name, wrong); got != want {
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
		if want := fmt.Sprintf("shape: MatMul: beta is %v: must be 0 or 1", beta); got != want {
			t.Errorf("panic %q, want %q", got, want)
		}
	}
	for _, p := range []float32{1, 1.5, -0.1, nan} {
		got := panics(t, func() { Dropout{P: p, Each: 1}.Check(one, one, id) })
		if want := fmt.Sprintf("shape: Dropout: P is %v: must be in [0, 1)", p); got != want {
			t.Errorf("panic %q, want %q", got, want)
		}
	}
}

// TestLogits: rows of logits may be longer than the number of classes, all by
// the same amount, but not shorter.
func TestLogits(t *testing.T) {
	loss, target := Tensor{512, 3, F32}, Tensor{512, 3, I32}
	check := func(n int, d DType) { CheckCrossEntropy(loss, Tensor{512, n, d}, target, 3, 5) }
	for _, n := range []int{15, 18, 24} {
		check(n, F32)
		check(n, BF16)
	}
	for _, n := range []int{0, 12, 14, 16, 17} {
		want := fmt.Sprintf("shape: CrossEntropy: logits holds %d elements: must be a multiple of rows = 3, and at least rows·classes = 15", n)
		if got := panics(t, func() { check(n, BF16) }); got != want {
			t.Errorf("panic %q, want %q", got, want)
		}
	}
}

// TestPositions checks that the table of positions may have more rows than the sequence
// has positions, but not fewer, and that its last row must be complete.
func TestPositions(t *testing.T) {
	s := Embed{B: 1, T: 2, C: 3, V: 1}
	out, tok, tokens := Tensor{512, 6, F32}, Tensor{512, 2, I32}, Tensor{512, 3, F32}
	table := func(n int) Tensor { return Tensor{512, n, F32} }
	s.Check(out, tok, tokens, table(9))
	s.CheckGrad(tokens, table(9), out, tok)
	for _, n := range []int{0, 3, 7, 8} {
		why := fmt.Sprintf("positions holds %d elements: must be a multiple of C = 3, and at least T·C = 6", n)
		if got, want := panics(t, func() { s.Check(out, tok, tokens, table(n)) }), "shape: Embed: "+why; got != want {
			t.Errorf("panic %q, want %q", got, want)
		}
		if got, want := panics(t, func() { s.CheckGrad(tokens, table(n), out, tok) }), "shape: EmbedGrad: d"+why; got != want {
			t.Errorf("panic %q, want %q", got, want)
		}
	}
}
