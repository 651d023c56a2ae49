package rewrite

import (
	"strings"
	"testing"

	"headroom/wrap/command"
	"headroom/wrap/profile"
	"headroom/wrap/wraptest"
)

// TestWarnings checks the warnings about a profile and its knobs. Most cases have a
// counterpart without that warning.
func TestWarnings(t *testing.T) {
	const head = "name: own\nmatch: {flags: [--bs]}\nknobs: {micro: {flags: [--bs], min: 4}, accumulation: {flags: [--acc], default: 1}}\nlaw: {write: [micro, accumulation]}\n"
	const epochs, single = "checkpoints: {root: ., glob: 'c-*', cadence: epoch}\nresume: {mode: auto}\n", "checkpoints: {root: ., glob: ckpt.pt, cadence: steps}\nresume: {mode: auto}\n"
	for _, c := range []struct {
		profile, command string
		want             []string
	}{
		{"transformers", "run_clm.py --output_dir o", nil},
		{"transformers", "run_clm.py --output_dir o --save_strategy no", []string{"checkpoints: --save_strategy no saves no checkpoint"}},
		{"transformers", "run_clm.py --output_dir o --save_strategy epoch", []string{"checkpoints: checkpoints are written only at the ends of epochs"}},
		{"transformers", "run_clm.py --output_dir o --max_steps 500", []string{"checkpoints: a checkpoint every 500 steps (--save_steps) comes too late for training that ends at step 500"}},
		{"transformers", "run_clm.py --output_dir o --max_steps 4000", []string{"checkpoints: a checkpoint every 500 steps, of 4000 in all (--save_steps): a failure costs up to 500"}},
		{"transformers", "run_clm.py --output_dir o --max_steps 5000", nil},
		{"transformers", "run_clm.py --output_dir o --max_steps 4000 --save_steps 400", nil},
		{"transformers", "run_clm.py --output_dir o --max_steps 4000 --save_steps 0.5", nil},
		{"transformers", "run_clm.py --output_dir o --auto_find_batch_size yes", []string{"retries: --auto_find_batch_size makes transformers retry by itself"}},
		{"transformers", "run_clm.py --output_dir o --auto_find_batch_size False", nil},
		{"transformers", "run_clm.py --output_dir o --overwrite_output_dir", []string{"checkpoints: --overwrite_output_dir makes the command start from scratch each time"}},
		{"transformers", "run_clm.py --output_dir o --overwrite_output_dir False", nil},
		{"transformers", "run_clm.py --output_dir o --per_device_train_batch_size 1", []string{"batch: the micro-batch is 1 already"}},
		{"transformers", "run_clm.py --output_dir o --per_device_train_batch_size 31", []string{"batch: the next micro-batch below 31 that keeps the effective batch 31 is 1: an effective batch such as 16, which has more divisors,"}},
		{"transformers", "run_clm.py --output_dir o --per_device_train_batch_size 15", nil},
		{"trl", "sft.py --output_dir o", []string{"checkpoints: trl can resume from a checkpoint only with trl 1.16.0 or later"}},
		{"trl", "sft.py --output_dir o --save_strategy no", []string{"checkpoints: --save_strategy no saves no", "checkpoints: trl can resume"}},
		{head + epochs, "t.py --bs 4", []string{"checkpoints: checkpoints are written only at the ends of epochs", "batch: the micro-batch is 4, and own needs at least 4"}},
		{head + epochs, "t.py --bs 8", []string{"checkpoints: checkpoints are written only at the ends of epochs"}},
		{head + single, "t.py --bs 8", []string{"checkpoints: ckpt.pt is a single file, which every save overwrites"}},
		{head, "t.py --bs 8", []string{"checkpoints: headroom knows no way to resume own from a checkpoint"}},
	} {
		profiles, name := profile.Builtin(), c.profile
		if strings.Contains(c.profile, "\n") {
			p, err := profile.Parse("own.yaml", []byte(c.profile))
			if err != nil {
				t.Fatal(err)
			}
			profiles, name = []profile.Profile{p}, p.Name
		}
		m, err := Recognise(command.Line{Args: strings.Fields("python " + c.command), Dir: "/"}, profiles, Given{Profile: name})
		if err != nil {
			t.Fatal(err)
		}
		wraptest.Warned(t, c.command, Warnings(m), c.want...)
	}
}
