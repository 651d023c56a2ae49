package configs

import (
	"fmt"
	"slices"
	"testing"
)

func load(t *testing.T, sets ...string) *Config {
	t.Helper()
	c, err := parse([]byte(good+"schedule: {kind: cosine}\n"), "my.yaml", sets)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestDiff(t *testing.T) {
	for _, test := range []struct {
		name string
		old  []string
		now  []string
		want []string
	}{
		{"the same", nil, nil, nil},
		{"what may change", nil, []string{"train.steps=300", "batch.micro=4", "device.capacity=1GiB", "memory.headroom=1%", "output.dir=x", "name=y", "data.path=z", "train.keep=9", "batch.min_micro=2"}, nil},
		{"what may not", nil, []string{"seed=2", "model.width=128", "batch.effective=64", "optimizer.lr=1e-4", "data.limit=1MiB"}, []string{
			"seed: 1 → 2", "model.width: 64 → 128", "data.limit: all → 1MiB",
			"batch.effective: 32 → 64", "optimizer.lr: 0.001 → 0.0001",
		}},
		{"another kind, named once", nil, []string{"optimizer.kind=sgd"}, []string{"optimizer.kind: adamw → sgd"}},
		{"left open", []string{"schedule.steps=100", "data.fingerprint=f"}, []string{"train.steps=400"}, nil},
		{"not left open", []string{"schedule.steps=100", "data.fingerprint=f"}, []string{"schedule.steps=400", "data.fingerprint=g"}, []string{
			"data.fingerprint: f → g", "schedule.steps: 100 → 400",
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var got []string
			for _, d := range Diff(load(t, test.old...), load(t, test.now...)) {
				got = append(got, fmt.Sprintf("%s: %s → %s", d.Key, d.Old, d.New))
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("%q\nwant %q", got, test.want)
			}
		})
	}
}

func TestInherit(t *testing.T) {
	old := load(t, "schedule.steps=100", "data.fingerprint=f", "batch.micro=3")
	now := load(t, "train.steps=400")
	now.Inherit(old)
	if now.Schedule.Steps != 100 || now.Data.Fingerprint != "f" || now.Train.Steps != 400 || now.Batch.Micro != 0 {
		t.Errorf("%+v", now)
	}
	own := load(t, "train.steps=400", "schedule.steps=400")
	own.Inherit(old)
	if own.Schedule.Steps != 400 {
		t.Errorf("schedule.steps is %d although it was given", own.Schedule.Steps)
	}
}
