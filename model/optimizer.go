package model

import (
	"cmp"
	"math"

	"headroom/device"
)

// OptimizerKind is a rule for updating weights.
type OptimizerKind string

// The optimizers.
const (
	AdamW OptimizerKind = "adamw" // two moments per weight
	SGD   OptimizerKind = "sgd"   // one moment per weight
)

// Optimizer says how weights are updated. Weight decay applies only to
// matrices, embeddings included, and not to biases or the parameters of
// normalisation.
type Optimizer struct {
	Kind        OptimizerKind // [optimizer.kind] "" means adamw
	LR          float64       // [optimizer.lr] learning rate after warm-up; above 0
	WeightDecay float64       // [optimizer.weight_decay]
	Clip        float64       // [optimizer.clip] largest norm allowed for all gradients together; 0 turns clipping off
	Beta1       float64       // [optimizer.beta1] for adamw; 0 means 0.9
	Beta2       float64       // [optimizer.beta2] for adamw; 0 means 0.95
	Eps         float64       // [optimizer.eps] for adamw; 0 means 1e-8
	Momentum    float64       // [optimizer.momentum] for sgd
}

func (o Optimizer) withDefaults() Optimizer {
	o.Kind = cmp.Or(o.Kind, AdamW)
	if o.Kind == AdamW {
		o.Beta1, o.Beta2, o.Eps = cmp.Or(o.Beta1, 0.9), cmp.Or(o.Beta2, 0.95), cmp.Or(o.Eps, 1e-8)
	}
	return o
}

func (o Optimizer) validate(p *problems) {
	if !(o.LR > 0) || math.IsInf(o.LR, 1) {
		p.add("optimizer.lr %v: must be above 0", o.LR)
	}
	p.notNegative("optimizer.weight_decay", o.WeightDecay)
	p.notNegative("optimizer.clip", o.Clip)
	for _, share := range []struct {
		key   string
		value float64
		of    OptimizerKind
	}{
		{"optimizer.beta1", o.Beta1, AdamW},
		{"optimizer.beta2", o.Beta2, AdamW},
		{"optimizer.eps", o.Eps, AdamW},
		{"optimizer.momentum", o.Momentum, SGD},
	} {
		if !(share.value >= 0 && share.value < 1) {
			p.add("%s %v: must be at least 0 and below 1", share.key, share.value)
		}
		if kind := cmp.Or(o.Kind, AdamW); share.value != 0 && share.of != kind {
			p.add("%s %v: has no meaning for optimizer.kind %s; leave it out", share.key, share.value, kind)
		}
	}
	if kind := cmp.Or(o.Kind, AdamW); kind != AdamW && kind != SGD {
		p.add("optimizer.kind %q: must be adamw or sgd", o.Kind)
	}
}

// moments returns the names of the tensors that the optimizer keeps; each
// tensor is as long as the weights. In a checkpoint, the names are prefixes of
// tensor names.
func (o Optimizer) moments() []string {
	if o.Kind == SGD {
		return []string{"sgd.momentum."}
	}
	return []string{"adamw.m.", "adamw.v."}
}

// update applies the optimizer to weights and moments. An update cannot be
// undone. It allocates nothing, so it cannot run out of memory halfway. Steps
// are counted from 1.
func (o Optimizer) update(dev device.Device, st *state, step int, lr, scale float64) {
	for _, part := range []struct {
		from, to int
		decay    float64
	}{{0, st.layout.matrices, o.WeightDecay}, {st.layout.matrices, st.layout.total, 0}} {
		n := part.to - part.from
		if n == 0 {
			continue
		}
		w, g := st.weights.View(part.from, n), st.grads.View(part.from, n)
		m := st.moments[0].View(part.from, n)
		if o.Kind == SGD {
			dev.SGD(w, g, m, device.SGD{
				LR: float32(lr), Momentum: float32(o.Momentum),
				WeightDecay: float32(part.decay), GradScale: float32(scale),
			})
			continue
		}
		dev.AdamW(w, g, m, st.moments[1].View(part.from, n), device.AdamW{
			LR: float32(lr), Beta1: float32(o.Beta1), Beta2: float32(o.Beta2), Eps: float32(o.Eps),
			WeightDecay: float32(part.decay), GradScale: float32(scale), Step: step,
		})
	}
}

// clipScale returns the factor by which gradients of the given norm must be
// multiplied so that their norm is at most Clip.
func (o Optimizer) clipScale(norm float64) float64 {
	if o.Clip > 0 && norm > o.Clip {
		return o.Clip / norm
	}
	return 1
}
