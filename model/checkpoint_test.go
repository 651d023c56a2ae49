package model

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"testing"

	"headroom/harness"
)

func save(t testing.TB, tr *Trainer) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := tr.Save(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func load(t testing.TB, tr *Trainer, saved []byte) {
	t.Helper()
	if err := tr.Load(bytes.NewReader(saved)); err != nil {
		t.Fatal(err)
	}
}

func TestLoadContinuesToTheBit(t *testing.T) {
	for _, s := range subjects() {
		for _, kind := range []OptimizerKind{AdamW, SGD} {
			t.Run(s.name+" "+string(kind), func(t *testing.T) {
				s.spec.Optimizer.Kind = kind
				s.spec.Optimizer.Momentum = map[OptimizerKind]float64{SGD: 0.9}[kind]
				whole, _ := s.open(t)
				steps(t, whole, 3, plan(20, 8))
				saved := save(t, whole)
				last := steps(t, whole, 3, plan(20, 8))

				for name, r := range map[string]io.Reader{
					"seekable": bytes.NewReader(saved),
					"stream":   io.MultiReader(bytes.NewReader(saved[:100]), bytes.NewReader(saved[100:])),
				} {
					tr, _ := s.open(t)
					steps(t, tr, 1, plan(20, 8)) // Load must undo this step
					if err := tr.Load(r); err != nil {
						t.Fatal(err)
					}
					if !bytes.Equal(save(t, tr), saved) {
						t.Errorf("%s: saving what was loaded gives another file", name)
					}
					got := steps(t, tr, 3, plan(20, 8))
					same(t, name, capture(t, tr), capture(t, whole))
					if got.Loss != last.Loss || got.First != last.First || tr.Steps() != 6 {
						t.Errorf("%s: report %+v, want %+v", name, got, last)
					}
				}
			})
		}
	}
}

func TestSaveAllocatesNothing(t *testing.T) {
	tr, d := tiny(GPT).open(t)
	d.FailAt(1, 2, 3)
	saved := save(t, tr)
	load(t, tr, saved)
	if d.Count() != 0 {
		t.Errorf("%d allocations to save and load", d.Count())
	}
}

// TestSavedFileIsSafetensors checks a checkpoint against the description of the
// safetensors format, without using this package's code to read it.
func TestSavedFileIsSafetensors(t *testing.T) {
	tr, _ := tiny(GPT).open(t)
	steps(t, tr, 2, plan(10, 4))
	saved := save(t, tr)
	n := binary.LittleEndian.Uint64(saved)
	if n%8 != 0 {
		t.Errorf("a header of %d bytes leaves the contents unaligned", n)
	}
	var tensors map[string]struct {
		DType   string `json:"dtype"`
		Shape   []int  `json:"shape"`
		Offsets [2]int `json:"data_offsets"`
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(saved[8:8+n], &object); err != nil {
		t.Fatal(err)
	}
	var metadata map[string]string
	if err := json.Unmarshal(object["__metadata__"], &metadata); err != nil {
		t.Fatal(err)
	}
	delete(object, "__metadata__")
	rest, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(rest, &tensors); err != nil {
		t.Fatal(err)
	}
	end := 0
	for _, x := range tensors {
		end = max(end, x.Offsets[1])
	}
	if end != len(saved)-8-int(n) {
		t.Errorf("contents end at %d of %d", end, len(saved)-8-int(n))
	}
	for key, want := range map[string]string{"step": "2", "position": "20", "model.kind": "gpt", "model.width": "16", "model.vocab": "23", "seed": "5", "optimizer.kind": "adamw"} {
		if metadata[key] != want {
			t.Errorf("metadata %s is %q, want %q", key, metadata[key], want)
		}
	}
	qkv := tensors["h.1.attn.c_attn.weight"]
	if !slices.Equal(qkv.Shape, []int{16, 48}) || qkv.DType != "F32" {
		t.Errorf("h.1.attn.c_attn.weight is %s %v, want F32 [16 48]", qkv.DType, qkv.Shape)
	}
	for _, p := range tr.st.layout.list {
		x := tensors[p.name]
		contents := make([]float32, p.n)
		if _, err := binary.Decode(saved[8+int(n)+x.Offsets[0]:], binary.LittleEndian, contents); err != nil {
			t.Fatal(err)
		}
		if firstDifference(contents, download(t, tr, tr.st.weights.View(p.at, p.n))) >= 0 {
			t.Errorf("%s differs in the file", p.name)
		}
	}
}

func TestLoadOfAnotherModelIsAMismatch(t *testing.T) {
	gpt, mlp := tiny(GPT), tiny(MLP)
	change := func(s subject, f func(*subject)) subject { f(&s); return s }
	for key, c := range map[string]struct{ from, to subject }{
		"model.kind":     {mlp, gpt},
		"model.width":    {gpt, change(gpt, func(s *subject) { s.spec.Width = 32 })},
		"model.layers":   {mlp, change(mlp, func(s *subject) { s.spec.Layers = 3 })},
		"model.heads":    {gpt, change(gpt, func(s *subject) { s.spec.Heads = 4 })},
		"model.context":  {gpt, change(gpt, func(s *subject) { s.spec.Context = 9 })},
		"model.vocab":    {gpt, change(gpt, func(s *subject) { s.spec.Vocab = 24 })},
		"model.classes":  {mlp, change(mlp, func(s *subject) { s.spec.Classes = 9 })},
		"optimizer.kind": {gpt, change(gpt, func(s *subject) { s.spec.Optimizer.Kind = SGD })},
		"seed":           {gpt, change(gpt, func(s *subject) { s.spec.Seed = 6 })},
		"data":           {gpt, change(gpt, func(s *subject) { s.set = text{n: 51, tokens: 8, classes: 23} })},
	} {
		t.Run(key, func(t *testing.T) {
			from, _ := c.from.open(t)
			saved := save(t, from)
			to, _ := c.to.open(t)
			steps(t, to, 1, plan(4, 4))
			before := capture(t, to)
			var mismatch *harness.MismatchError
			if err := to.Load(bytes.NewReader(saved)); !errors.As(err, &mismatch) || mismatch.Key != key {
				t.Errorf("error %v, want a mismatch of %s", err, key)
			}
			same(t, "after a mismatch", capture(t, to), before)
		})
	}
}

func TestLearningRateMayChangeBetweenAttempts(t *testing.T) {
	s := tiny(GPT)
	tr, _ := s.open(t)
	saved := save(t, tr)
	s.spec.Optimizer.LR, s.spec.Dropout, s.spec.Schedule.Steps = 0.02, 0, 40
	other, _ := s.open(t)
	load(t, other, saved)
}
