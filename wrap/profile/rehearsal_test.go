package profile

import (
	"strings"
	"testing"
)

func TestTrialLanguage(t *testing.T) {
	for line, want := range map[string]string{
		`trial: {steps: 3, set: {eval: "{temporary}"}}`:                                    "write {steps} into the knob",
		`trial: {set: {eval: "{steps}"}}`:                                                  "write {steps} into the knob",
		`trial: {steps: 3, set: {eval: "{step}"}}`:                                         "step is not known",
		`trial: {steps: 3, set: {micro: "{steps}"}}`:                                       "must not be set; a trial has the effective batch of the training",
		`trial: {steps: 3, set: {evil: "{steps}"}}`:                                        "did you mean eval?",
		`trial: {drop: [evil]}`:                                                            "did you mean eval?",
		`trial: {samples_per_second: "speed"}`:                                             "one group",
		`trial: {steps: 0}`:                                                                "must be a whole number of at least 1",
		`trial: {steps: 2, set: {eval: "{3*steps*accumulation}"}, if_given: {retry: "x"}}`: "",
	} {
		text := "name: custom\nmatch: {flags: [--micro]}\nknobs:\n  micro: {flags: [--micro]}\n  accumulation: {flags: [--accum], default: 1}\n" +
			"  eval: {flags: [--eval], default: 4}\n  retry: {flags: [--retry], type: bool}\nlaw: {write: [micro, accumulation]}\nswitch_off: {retry: \"false\"}\n" + line + "\n"
		_, err := Parse("custom.yaml", []byte(text))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
	}
}

func TestSpeed(t *testing.T) {
	for _, p := range Builtin() {
		if p.Name == "transformers" {
			for output, want := range map[string]float64{
				"{'train_runtime': '1.2', 'train_samples_per_second': '84.5', 'train_steps_per_second': '2'}": 84.5,
				"{'train_runtime': 1.2, 'train_samples_per_second': 84, 'train_steps_per_second': 2}":         84,
				"  train_samples_per_second =    7.25\n":                                                      7.25,
				"nothing":                                                                                     0,
			} {
				if got := p.Trial.SpeedIn([]byte(output)); got != want {
					t.Errorf("%s: %g, want %g", output, got, want)
				}
			}
		}
	}
}
