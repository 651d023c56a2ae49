package rewrite

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"headroom/recovery"
	"headroom/wrap/command"
	"headroom/wrap/profile"
	"headroom/wrap/wraptest"
)

// TestRehearse checks that a trial runs only a few steps, writes to a different place,
// does not resume from a checkpoint, and has the effective batch of the training.
func TestRehearse(t *testing.T) {
	for _, c := range []struct {
		name, command string
		files         map[string]string
		knobs         []string
		micro         int
		want          string // the arguments after the script, or the error
		copies        string // lines of copied configurations that changed
	}{
		{"Transformers", "python run_clm.py --per_device_train_batch_size 32 --output_dir out --num_train_epochs 3 --resume_from_checkpoint out/checkpoint-5 --eval_strategy epoch --logging_dir tb --push_to_hub", nil, nil, 8,
			"--per_device_train_batch_size 8 --output_dir /tmp/t --num_train_epochs 3 --eval_strategy no --logging_dir /tmp/t --push_to_hub=False --gradient_accumulation_steps 4 --report_to none --save_strategy no --max_steps 3", ""},
		{"Transformers as it stands, but for what it would do by itself", "python run_clm.py --per_device_train_batch_size 32 --output_dir out --auto_find_batch_size True", nil, nil, 32,
			"--per_device_train_batch_size 32 --output_dir /tmp/t --auto_find_batch_size False --report_to none --save_strategy no --max_steps 3", ""},
		{"a JSON file alone", "python run_clm.py train.json", map[string]string{"train.json": "{\n \"per_device_train_batch_size\": 32,\n \"output_dir\": \"out\",\n \"do_eval\": true\n}\n"}, nil, 16,
			".headroom-trial-train.json", `"max_steps": 3 | "save_strategy": "no" | "report_to": "none" | "gradient_accumulation_steps": 2 | "per_device_train_batch_size": 16 | "output_dir": "/tmp/t" | "do_eval": false`},
		{"a YAML file alone", "python run_clm.py train.yaml", map[string]string{"train.yaml": "per_device_train_batch_size: 32\noutput_dir: out # here\nsave_strategy: epoch\n"}, nil, 16,
			".headroom-trial-train.yaml", `max_steps: 3 | report_to: none | gradient_accumulation_steps: 2 | per_device_train_batch_size: 16 | output_dir: /tmp/t # here | save_strategy: "no"`},
		{"a file that resumes from a checkpoint", "python run_clm.py train.yaml", map[string]string{"train.yaml": "per_device_train_batch_size: 32\noutput_dir: out\nresume_from_checkpoint: out/checkpoint-5\n"}, nil, 16,
			"a trial starts from the beginning; remove this setting", ""},
		{"nanoGPT", "python train.py --batch_size=12 --gradient_accumulation_steps=4 --wandb_log=True --n_layer=4", map[string]string{"train.py": "from model import GPTConfig"}, nil, 6,
			"--batch_size=6 --gradient_accumulation_steps=8 --wandb_log=False --n_layer=4 --eval_interval=1000000000 --eval_iters=1 --max_iters=3 --out_dir=/tmp/t", ""},
		{"Lightning counts batches", "python main.py fit --data.batch_size 32 --trainer.max_epochs 3 --ckpt_path a.ckpt --trainer.accumulate_grad_batches 1", map[string]string{"main.py": "from lightning.pytorch.cli import LightningCLI"}, nil, 8,
			"fit --data.batch_size 8 --trainer.max_epochs 3 --trainer.accumulate_grad_batches 4 --trainer.fast_dev_run 12 --trainer.default_root_dir /tmp/t", ""},
		{"timm, ended from outside", "python train.py /data --model resnet50 -b 256 --amp --log-wandb --resume a.pth.tar", map[string]string{"train.py": "from timm.scheduler import create_scheduler_v2"}, nil, 128,
			"/data --model resnet50 -b 128 --amp --grad-accum-steps 2 --output /tmp/t", ""},
		{"knobs that the user named", "python mine.py --bs 8 --acc 1 --out here --from a.pt", nil, []string{"micro=--bs", "accumulation=--acc", "output=--out", "steps=--steps", "resume=--from"}, 2,
			"--bs 2 --acc 4 --out /tmp/t --steps 3", ""},
		{"no divisor", "python mine.py --bs 8 --acc 1", nil, []string{"micro=--bs", "accumulation=--acc"}, 3, "--bs 2 --acc 4", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := fstest.MapFS{}
			for name, text := range c.files {
				files["work/"+name] = &fstest.MapFile{Data: []byte(text)}
			}
			m, err := Recognise(wraptest.Typed(c.command), profile.Builtin(), Given{Files: files, Knobs: c.knobs})
			if err != nil {
				t.Fatal(err)
			}
			asked, err := Asks(m)
			if err != nil {
				t.Fatal(err)
			}
			var got, copies string
			out, err := Rehearse(m, asked.Plan.WithMicro(c.micro), "/tmp/t")
			if err != nil {
				got = err.Error()
			} else {
				got = strings.Join(out.Command.Args[2:], " ")
			}
			for _, one := range out.Copies {
				if one.Path != got {
					t.Errorf("the copy is %s", one.Path)
				}
				copies = strings.Join(strings.Split(strings.Trim(string(one.Content), " {}\n"), "\n"), " | ")
				copies = strings.ReplaceAll(strings.ReplaceAll(copies, ",", ""), "|  ", "| ")
			}
			if got != c.want && (err == nil || !strings.Contains(got, c.want)) || copies != c.copies {
				t.Errorf("%s\n%s\nwant\n%s\n%s", got, copies, c.want, c.copies)
			}
		})
	}
}

// TestTriable checks which commands can be tried, and what the user is told about those
// that cannot.
func TestTriable(t *testing.T) {
	for _, c := range []struct {
		command         string
		knobs           []string
		gpu, vouched    bool
		reason, mention string
	}{
		{"python run_clm.py --per_device_train_batch_size 8 --output_dir out", nil, false, false, "", ""},
		{"python mine.py --bs 8", []string{"micro=--bs", "steps=--n"}, true, false, "headroom does not know where the command writes", "--knob output=FLAG"},
		{"python mine.py --bs 8", []string{"micro=--bs"}, false, false, "to the same place as the training; headroom does not know how to end a trial", "if it writes nothing; name the flag that sets the training's length"},
		{"python mine.py --bs 8", []string{"micro=--bs", "steps=--n"}, false, true, "", ""},
		{"python mine.py --bs 8", []string{"micro=--bs", "steps=--n", "output=--out"}, false, false, "", ""},
		{"python mine.py --bs 8", []string{"micro=--bs", "output=--out"}, false, false, "there is no GPU whose memory could show", "--knob steps=FLAG"},
		{"python mine.py --bs 8", []string{"micro=--bs", "output=--out"}, true, false, "", ""},
	} {
		m, err := Recognise(wraptest.Typed(c.command), profile.Builtin(), Given{Knobs: c.knobs})
		if err != nil {
			t.Fatal(err)
		}
		err = Triable(m, c.gpu, c.vouched)
		var no *UntriableError
		if c.reason == "" && err != nil || c.reason != "" && (!errors.As(err, &no) || !strings.Contains(no.Reason, c.reason) || !strings.Contains(no.Hint, c.mention)) {
			t.Errorf("%s %v: %v, want %q", c.command, c.knobs, err, c.reason)
		}
	}
}

// TestTrialKnobs checks that all knobs that are missing are named at once.
func TestTrialKnobs(t *testing.T) {
	for _, c := range []struct {
		knobs        string
		gpu, vouched bool
		want         string
	}{
		{"", false, false, "micro accumulation output steps"},
		{"", true, true, "micro accumulation"},
		{"micro=--bs", false, false, "accumulation output steps"},
		{"micro=--bs global=--total", false, true, "steps"},
		{"micro=--bs accumulation=--acc output=--out steps=--n", false, false, ""},
	} {
		if got := strings.Join(TrialKnobs(strings.Fields(c.knobs), c.gpu, c.vouched), " "); got != c.want {
			t.Errorf("%q, %v, %v: %q, want %q", c.knobs, c.gpu, c.vouched, got, c.want)
		}
	}
}

func TestSizes(t *testing.T) {
	for _, c := range []struct {
		command string
		knobs   []string
		want    string
	}{
		{"python run_clm.py --per_device_train_batch_size 6 --gradient_accumulation_steps 2 --output_dir out", nil, "[1 2 3 4 6 12]"},
		{"torchrun --nproc_per_node 2 run_clm.py --per_device_train_batch_size 6 --gradient_accumulation_steps 2 --output_dir out", nil, "[1 2 3 4 6 12]"},
		{"python mine.py --bs 1 --acc 1", []string{"micro=--bs", "accumulation=--acc"}, "[1]"},
		{"python mine.py --bs 8", []string{"micro=--bs"}, "[8] micro-batch 1: no knob sets the accumulation"},
	} {
		m, err := Recognise(wraptest.Typed(c.command), profile.Builtin(), Given{Knobs: c.knobs})
		if err != nil {
			t.Fatal(err)
		}
		asked, err := Asks(m)
		if err != nil {
			t.Fatal(err)
		}
		sizes, err := Sizes(m, asked.Plan)
		got := fmt.Sprint(sizes)
		if err != nil {
			got += " " + err.Error()
		}
		if !strings.HasPrefix(got, c.want) || err == nil && got != c.want {
			t.Errorf("%s: %s, want %s", c.command, got, c.want)
		}
	}
}

// TestBuiltinTrials checks that with every built-in profile of a framework a trial leaves
// the training's output alone.
func TestBuiltinTrials(t *testing.T) {
	for _, p := range profile.Builtin() {
		if !p.Layer && !p.Trial.Redirects() {
			t.Errorf("%s does not say where a trial writes", p.Name)
		}
	}
}

// TestTrialLeavesNothing checks that a trial's copy of a configuration is written beside the
// original and then removed, and that the training's copy stays.
func TestTrialLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"train.yaml": "per_device_train_batch_size: 4\noutput_dir: out\n", ".headroom-train.yaml": "of a training under way"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := command.Line{Args: []string{"python", "run_clm.py", "train.yaml"}, Dir: dir}
	m, err := Recognise(c, profile.Builtin(), Given{Files: os.DirFS("/")})
	if err != nil {
		t.Fatal(err)
	}
	out, err := Rehearse(m, recovery.Plan{Effective: 4, World: 1, Micro: 2, Uniform: true}, "/tmp/t")
	if err != nil {
		t.Fatal(err)
	}
	if err := out.Write(); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(dir, ".headroom-trial-train.yaml")); err != nil || !strings.Contains(string(text), "/tmp/t") {
		t.Errorf("%s, %v", text, err)
	}
	if err := out.Remove(); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if strings.Join(names, " ") != ".headroom-train.yaml train.yaml" {
		t.Errorf("there is %v", names)
	}
}
