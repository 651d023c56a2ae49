package model

import (
	"math"
	"slices"
	"strings"
	"testing"

	"headroom/model/data"
)

func TestValidateNamesEveryProblem(t *testing.T) {
	good := Optimizer{LR: 0.01}
	for _, c := range []struct {
		spec Spec
		want []string
	}{
		{Spec{Kind: GPT, Width: 64, Layers: 1, Heads: 4, Optimizer: good}, nil},
		{Spec{Kind: MLP, Width: 65, Layers: 1, Optimizer: good, Schedule: Schedule{Kind: Cosine, Steps: 5}}, nil},
		{Spec{}, []string{`model.kind ""`, "model.width 0", "model.layers 0", "optimizer.lr 0"}},
		{Spec{Kind: GPT, Width: 65, Layers: 1, Heads: 4, Optimizer: good}, []string{"model.width 65: must be a multiple of model.heads 4"}},
		{Spec{Kind: MLP, Width: 8, Layers: 1, Heads: 4, Context: 1, Vocab: 2, Optimizer: good}, []string{
			"model.heads 4: has no meaning for model.kind mlp; leave it out", "model.context 1", "model.vocab 2"}},
		{Spec{Kind: GPT, Width: 8, Layers: -1, Heads: 0, Dropout: 1, Features: 3, Classes: 2, Optimizer: good}, []string{
			"model.heads 0", "model.features 3", "model.classes 2", "model.layers -1", "model.dropout 1"}},
		{Spec{Kind: MLP, Width: 8, Layers: 1, Dropout: math.NaN(), Optimizer: Optimizer{
			Kind: "lion", LR: math.Inf(1), WeightDecay: -1, Clip: math.NaN(), Beta1: 1,
		}}, []string{"model.dropout NaN", "optimizer.lr +Inf", "optimizer.weight_decay -1", "optimizer.clip NaN",
			"optimizer.beta1 1: must be", "optimizer.beta1 1: has no meaning", `optimizer.kind "lion"`}},
		{Spec{Kind: MLP, Width: 8, Layers: 1, Optimizer: Optimizer{LR: 1, Momentum: 0.9}}, []string{"optimizer.momentum 0.9: has no meaning for optimizer.kind adamw"}},
		{Spec{Kind: MLP, Width: 8, Layers: 1, Optimizer: good, Schedule: Schedule{Kind: Linear, Warmup: 5, Steps: 5, Min: 1}}, []string{
			"schedule.steps 5: must be above schedule.warmup 5", "schedule.min 1: must be at most optimizer.lr 0.01"}},
		{Spec{Kind: MLP, Width: 8, Layers: 1, Optimizer: good, Schedule: Schedule{Kind: "step", Warmup: -1, Min: -1}}, []string{
			"schedule.warmup -1", "schedule.min -1", `schedule.kind "step"`}},
		{Spec{Kind: MLP, Width: 8, Layers: 1, Optimizer: good, Schedule: Schedule{Min: 0.1}}, []string{"schedule.min 0.1: has no meaning"}},
	} {
		checkProblems(t, c.spec.Validate(), c.want)
	}
}

func checkProblems(t *testing.T, err error, want []string) {
	t.Helper()
	var lines []string
	if err != nil {
		lines = strings.Split(err.Error(), "\n")
	}
	if len(lines) != len(want) {
		t.Errorf("%d problems, want %d: %q", len(lines), len(want), lines)
	}
	for _, w := range want {
		if !slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, w) }) {
			t.Errorf("no problem starts with %q: %q", w, lines)
		}
	}
}

func TestFitTakesSizesFromTheData(t *testing.T) {
	o := Optimizer{LR: 0.01}
	gpt := Spec{Kind: GPT, Width: 8, Layers: 1, Heads: 2, Optimizer: o}
	mlp := Spec{Kind: MLP, Width: 8, Layers: 1, Optimizer: o}
	bytes, images := data.Shape{Tokens: 64, Classes: 256}, data.Shape{Features: 784, Classes: 10}

	got, err := gpt.Fit(bytes)
	if err != nil || got.Context != 64 || got.Vocab != 256 {
		t.Errorf("context %d, vocabulary %d, error %v", got.Context, got.Vocab, err)
	}
	got, err = mlp.Fit(images)
	if err != nil || got.Features != 784 || got.Classes != 10 {
		t.Errorf("features %d, classes %d, error %v", got.Features, got.Classes, err)
	}
	_, err = gpt.Fit(images)
	checkProblems(t, err, []string{"model.kind gpt: the data has features"})
	_, err = mlp.Fit(bytes)
	checkProblems(t, err, []string{"model.kind mlp: the data is text"})
	gpt.Context, gpt.Vocab = 32, 100
	_, err = gpt.Fit(bytes)
	checkProblems(t, err, []string{"model.context 32: must be at least 64", "model.vocab 100: must be at least 256"})
	mlp.Features, mlp.Classes = 28, 2
	_, err = mlp.Fit(images)
	checkProblems(t, err, []string{"model.features 28: the data has 784", "model.classes 2: must be at least 10"})
}

func TestSchedule(t *testing.T) {
	for _, c := range []struct {
		s    Schedule
		want map[int]float64
	}{
		{Schedule{}, map[int]float64{1: 1, 1000: 1}},
		{Schedule{Warmup: 4}, map[int]float64{1: 0.25, 2: 0.5, 4: 1, 5: 1}},
		{Schedule{Kind: Linear, Warmup: 2, Steps: 12, Min: 0.2}, map[int]float64{1: 0.5, 2: 1, 7: 0.6, 12: 0.2, 99: 0.2}},
		{Schedule{Kind: Cosine, Steps: 12, Min: 0.2}, map[int]float64{6: 0.6, 12: 0.2, 99: 0.2, 4: 0.8}},
	} {
		for step, want := range c.want {
			if got := c.s.at(step, 1); math.Abs(got-want) > 1e-12 {
				t.Errorf("%+v at step %d: %v, want %v", c.s, step, got, want)
			}
		}
	}
}

func TestInitialWeights(t *testing.T) {
	s := tiny(GPT)
	s.spec.Width = 64
	tr, _ := s.open(t)
	residual := deviation / math.Sqrt(2*float64(s.spec.Layers))
	for name, want := range map[string][2]float64{ // mean and deviation
		"wte.weight":             {0, deviation},
		"h.0.attn.c_attn.weight": {0, deviation},
		"h.1.mlp.c_proj.weight":  {0, residual},
		"h.1.mlp.c_proj.bias":    {0, 0},
		"h.0.ln_1.weight":        {1, 0},
		"ln_f.bias":              {0, 0},
	} {
		i := slices.IndexFunc(tr.st.layout.list, func(p *parameter) bool { return p.name == name })
		p := tr.st.layout.list[i]
		mean, dev := moments(download(t, tr, tr.st.weights.View(p.at, p.n)))
		if math.Abs(mean-want[0]) > 4*deviation/math.Sqrt(float64(p.n)) || math.Abs(dev-want[1]) > 0.05*want[1] {
			t.Errorf("%s: mean %.5f, deviation %.5f; want %v", name, mean, dev, want)
		}
	}
	again, _ := s.open(t)
	same(t, "the same seed", capture(t, again), capture(t, tr))
	s.spec.Seed++
	other, _ := s.open(t)
	if distance(capture(t, other).weights, capture(t, tr).weights) < 0.1 {
		t.Error("another seed gives nearly the same weights")
	}
}

// TestInitialWeightsAreIndependent checks that a parameter's initial weights do
// not depend on the rest of the model.
func TestInitialWeightsAreIndependent(t *testing.T) {
	a, b := make([]float32, 50), make([]float32, 100)
	(&parameter{name: "wte.weight", std: 1}).fill(a, 1)
	(&parameter{name: "wte.weight", std: 1, at: 640}).fill(b, 1)
	if firstDifference(a, b[:50]) >= 0 {
		t.Error("the first weights depend on how many there are or where they lie")
	}
	(&parameter{name: "wpe.weight", std: 1}).fill(b, 1)
	if distance(a, b[:50]) < 0.5 {
		t.Error("two parameters start alike")
	}
}

func moments(x []float32) (mean, deviation float64) {
	for _, v := range x {
		mean += float64(v) / float64(len(x))
	}
	for _, v := range x {
		deviation += (float64(v) - mean) * (float64(v) - mean) / float64(len(x))
	}
	return mean, math.Sqrt(deviation)
}

// TestFillIsAFunctionOfTheIndex checks that the initial values are the same in a
// long parameter, which several goroutines fill, and in a short one.
func TestFillIsAFunctionOfTheIndex(t *testing.T) {
	p := &parameter{name: "p", std: 0.5}
	whole, start := make([]float32, 3*pieceOfFill-5), make([]float32, 7)
	p.fill(whole, 3)
	p.fill(start, 3)
	if !slices.Equal(whole[:7], start) {
		t.Errorf("%v at the start of a long parameter, %v of a short one", whole[:7], start)
	}
	for from := 0; from < len(whole); from += pieceOfFill {
		mean, dev := moments(whole[from:min(len(whole), from+pieceOfFill)])
		if math.Abs(mean) > 0.01 || math.Abs(dev-0.5) > 0.01 {
			t.Errorf("from %d on: mean %v, deviation %v; want 0 and 0.5", from, mean, dev)
		}
	}
}
