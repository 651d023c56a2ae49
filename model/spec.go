package model

import (
	"cmp"
	"errors"
	"fmt"
	"math"

	"headroom/model/data"
)

// Kind is a kind of model.
type Kind string

// The kinds of models.
const (
	GPT Kind = "gpt" // decoder-only transformer like GPT-2, for text
	MLP Kind = "mlp" // multi-layer perceptron, for features
)

// Spec says what to train and how. It is plain data. The errors of [Spec.Validate] refer
// to each setting by its key, which is given in brackets here.
type Spec struct {
	Kind    Kind    // [model.kind]
	Width   int     // [model.width] channels of a GPT, units of each hidden layer of an MLP
	Layers  int     // [model.layers] blocks of a GPT, hidden layers of an MLP
	Heads   int     // [model.heads] attention heads of a GPT; must divide Width
	Dropout float64 // [model.dropout] probability of dropping an activation, in [0, 1)

	// These sizes depend on the data. If a size is 0, it is taken from the set;
	// any other value must suit the set.
	Context  int // [model.context] positions of a GPT; at least the tokens of a sample
	Vocab    int // [model.vocab] number of tokens that a GPT knows; at least that of the set
	Features int // [model.features] inputs of an MLP
	Classes  int // [model.classes] outputs of an MLP

	// Mixed keeps activations, their gradients and matrix products in bfloat16, as
	// PyTorch's autocast does. Weights, their gradients, the residual stream, sums
	// and statistics stay float32. The setting is [device.precision] bf16.
	Mixed bool

	Seed      uint64 // [seed] for initial weights, dropout and the order of samples
	Optimizer Optimizer
	Schedule  Schedule
}

// Validate returns an error that names all problems of s, or nil.
func (s Spec) Validate() error {
	var p problems
	switch s.Kind {
	case GPT:
		p.atLeast("model.heads", s.Heads, 1)
		if s.Heads > 0 && s.Width > 0 && s.Width%s.Heads != 0 {
			p.add("model.width %d: must be a multiple of model.heads %d", s.Width, s.Heads)
		}
		p.atLeast("model.context", s.Context, 0)
		p.atLeast("model.vocab", s.Vocab, 0)
		p.unused(GPT, "model.features", s.Features)
		p.unused(GPT, "model.classes", s.Classes)
	case MLP:
		p.atLeast("model.features", s.Features, 0)
		p.atLeast("model.classes", s.Classes, 0)
		p.unused(MLP, "model.heads", s.Heads)
		p.unused(MLP, "model.context", s.Context)
		p.unused(MLP, "model.vocab", s.Vocab)
	default:
		p.add("model.kind %q: must be gpt or mlp", s.Kind)
	}
	p.atLeast("model.width", s.Width, 1)
	p.atLeast("model.layers", s.Layers, 1)
	if !(s.Dropout >= 0 && s.Dropout < 1) {
		p.add("model.dropout %v: must be at least 0 and below 1", s.Dropout)
	}
	s.Optimizer.validate(&p)
	s.Schedule.validate(&p, s.Optimizer.LR)
	return errors.Join(p...)
}

// Fit returns s, in which every size that was 0 has been set from d, the shape of the data.
// The error names all problems of s, or else all sizes that do not suit the data.
func (s Spec) Fit(d data.Shape) (Spec, error) {
	if err := s.Validate(); err != nil {
		return s, err
	}
	var p problems
	switch s.Kind {
	case GPT:
		if d.Tokens == 0 {
			p.add("model.kind gpt: the data has features, not text; use mlp")
			break
		}
		s.Context, s.Vocab = cmp.Or(s.Context, d.Tokens), cmp.Or(s.Vocab, d.Classes)
		p.atLeast("model.context", s.Context, d.Tokens)
		p.atLeast("model.vocab", s.Vocab, d.Classes)
	case MLP:
		if d.Tokens > 0 {
			p.add("model.kind mlp: the data is text, not features; use gpt")
			break
		}
		s.Features, s.Classes = cmp.Or(s.Features, d.Features), cmp.Or(s.Classes, d.Classes)
		if s.Features != d.Features {
			p.add("model.features %d: the data has %d", s.Features, d.Features)
		}
		p.atLeast("model.classes", s.Classes, d.Classes)
	}
	return s, errors.Join(p...)
}

// problems collects errors, so that all of them are reported together.
type problems []error

func (p *problems) add(format string, args ...any) {
	*p = append(*p, fmt.Errorf(format, args...))
}

func (p *problems) atLeast(key string, value, least int) {
	if value < least {
		p.add("%s %d: must be at least %d", key, value, least)
	}
}

func (p *problems) unused(kind Kind, key string, value int) {
	if value != 0 {
		p.add("%s %d: has no meaning for model.kind %s; leave it out", key, value, kind)
	}
}

// notNegative adds a problem unless value is finite and at least 0.
func (p *problems) notNegative(key string, value float64) {
	if !(value >= 0) || math.IsInf(value, 1) {
		p.add("%s %v: must be at least 0", key, value)
	}
}
