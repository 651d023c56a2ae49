package wrap

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"headroom/memory"
	"headroom/wrap/command"
	"headroom/wrap/profile"
	"headroom/wrap/rewrite"
	"headroom/wrap/wraptest"
)

// explained returns the explanation of a command with the given files, run in /work.
func explained(t *testing.T, line string, files fstest.MapFS, g rewrite.Given, trust bool) Explanation {
	t.Helper()
	g.Files = files
	w := New(command.Line{Args: strings.Fields(line), Dir: "/work"}, profile.Builtin(), g)
	w.Trust = trust
	return w.Explain(Look{Files: files, Now: wraptest.Now, Free: func(dir string) (memory.Bytes, bool) {
		if dir != "/work/out" {
			t.Errorf("looked at the disk of %s", dir)
		}
		return memory.MiB, true
	}})
}

// TestExplain checks the explanation of a command that is recognised: every signal with
// its points, where each knob is set, what would be changed, and which checkpoints exist.
func TestExplain(t *testing.T) {
	files := fstest.MapFS{
		"work/run_clm.py": {Data: []byte("from transformers import (\n    HfArgumentParser,\n)\n")},
		"work/ds.json":    {Data: []byte(`{"train_micro_batch_size_per_gpu": "auto"}`)},
		"work/out/checkpoint-5/trainer_state.json": {Data: []byte("{}"), ModTime: wraptest.Start},
	}
	e := explained(t, "torchrun --nproc_per_node 2 run_clm.py --per_device_train_batch_size 12 --output_dir out --deepspeed ds.json", files, rewrite.Given{}, false)
	if e.Profile != "transformers" || e.Launch.Program != "run_clm.py" || fmt.Sprint(e.Launch.By, e.Launch.Layers, e.Launch.Ranks) != "[torchrun] [deepspeed] 2" {
		t.Errorf("recognised %s, %+v", e.Profile, e.Launch)
	}
	if best := e.Scores[0]; best.Profile != "transformers" || best.Points != 7 || strings.Join(best.Reasons, "; ") != "+3 run_clm.py; +2 --per_device_train_batch_size; +2 run_clm.py imports HfArgumentParser" {
		t.Errorf("scores %+v", e.Scores)
	}
	want := []rewrite.KnobAt{{Name: "micro", Value: "12", Kind: "argument", Where: "--per_device_train_batch_size"}, {Name: "accumulation", Value: "1", Kind: "default", Where: "the default"}, {Name: "eval", Value: "8", Kind: "default", Where: "the default"}, {Name: "steps", Value: "", Kind: "absent", Where: "--max_steps"}}
	if !slices.Equal(e.Knobs[:4], want) {
		t.Errorf("knobs %+v", e.Knobs)
	}
	if s := e.Smaller; s == nil || s.Plan.Micro != 6 || !strings.Contains(s.Diff, "+--gradient_accumulation_steps 2") || len(s.Prove) != 1 || !strings.Contains(s.Prove[0], "--max_steps is given") || s.Trusted || s.Refused != "" {
		t.Errorf("smaller %+v", s)
	}
	if s := e.Saved; s == nil || s.Where != "out/checkpoint-*" || len(s.All) != 1 || s.All[0].Problem != "no model.safetensors or model.safetensors.index.json or pytorch_model.bin or pytorch_model.bin.index.json or adapter_model.safetensors or adapter_model.bin or pytorch_model_fsdp_0 or global_step*" || s.Newest != nil || !slices.Equal(s.Set, []string{"--resume_from_checkpoint {checkpoint}"}) {
		t.Errorf("checkpoints %+v", s)
	}
	wraptest.Warned(t, "torchrun", e.Warnings, "disk: only 1 MiB is free on the disk that holds out", "allocator, advice: expandable")
}

// TestExplainGoesOn checks that an explanation shows how the command would resume from a
// checkpoint.
func TestExplainGoesOn(t *testing.T) {
	const zip = "PK\x03\x04 data PK\x05\x06 and the end of the directory"
	files := fstest.MapFS{"work/out/ck-7.pt": {Data: []byte(zip), ModTime: wraptest.Start}}
	g := rewrite.Given{Knobs: []string{"micro=--bs", "accumulation=--acc", "resume=--from", "checkpoints=out/ck-*.pt"}}
	e := explained(t, "python t.py --bs 8 --acc 1", files, g, true)
	if s := e.Saved; s == nil || s.Newest == nil || s.Newest.Size != memory.Bytes(len(zip)) || !strings.Contains(s.Diff, "+--from out/ck-7.pt") {
		t.Errorf("checkpoints %+v", s)
	} else if text, err := json.Marshal(s.Newest); err != nil || string(text) != `{"path":"out/ck-7.pt","number":7,"time":"2026-03-01T22:00:00Z","size":43}` {
		t.Errorf("%s, %v", text, err)
	}
	if s := e.Smaller; s == nil || !s.Trusted || len(s.Prove) != 4 || s.Diff == "" {
		t.Errorf("smaller %+v", s)
	}
	for _, w := range e.Warnings {
		if w.About == "disk" {
			t.Errorf("a disk with room for many of them: %s", w.Text)
		}
	}
	if len(e.Scores) > 0 && e.Scores[0].Points > 0 {
		t.Errorf("scores %+v", e.Scores)
	}
}

// TestExplainUnknown checks the explanation of a command that is not recognised, or whose
// plan cannot be determined: why that is so, and which knobs its options suggest.
func TestExplainUnknown(t *testing.T) {
	files := fstest.MapFS{"work/t.py": {Data: []byte("p.add_argument('--eval_batch')\np.add_argument('-b', '--batch-size', default=3)\np.add_argument(\"--grad_accum\", type=int)\n")}}
	for _, c := range []struct{ command, why, program, suggest string }{
		{"python t.py --lr 3", "not recognised: no profile fits well enough", "t.py", "micro=--batch-size accumulation=--grad_accum"},
		{"python t.py --train_batch=4 --eval_batch 2", "not recognised: no profile fits well enough", "t.py", "micro=--train_batch accumulation=--grad_accum"},
		{"python nothere.py --lr 3", "not recognised: no profile fits well enough", "nothere.py", ""},
		{"bash train.sh --batch 3", "cannot see the training command inside bash", "", ""},
	} {
		e := explained(t, c.command, files, rewrite.Given{}, false)
		if !strings.HasPrefix(e.Why, c.why) || e.Launch.Program != c.program || strings.Join(e.Suggest, " ") != c.suggest || e.Plan != nil || e.Smaller != nil || e.Profile != "" {
			t.Errorf("%s: %+v", c.command, e)
		}
	}
	e := explained(t, "python run_clm.py --per_device_train_batch_size x --output_dir out", fstest.MapFS{}, rewrite.Given{}, false)
	if e.Profile != "transformers" || !strings.Contains(e.Why, "is not an integer expression") && !strings.Contains(e.Why, "is not known") || e.Plan != nil || e.Knobs[0].Value != "x" || len(e.Suggest) > 0 {
		t.Errorf("a plan that cannot be determined: %+v", e)
	}
}

// TestExplainEveryCommand checks that the explanation of every command in testdata can be
// encoded as JSON, and says either what would be changed or why nothing would be.
func TestExplainEveryCommand(t *testing.T) {
	for name, archive := range commandFiles(t) {
		s := readScenario(t, archive)
		w := New(s.command, profile.Builtin(), s.given)
		e := w.Explain(Look{Files: s.files, Now: wraptest.Now})
		if _, err := json.Marshal(e); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		changes := e.Smaller != nil && (e.Smaller.Diff != "") == (e.Smaller.Refused == "")
		if (e.Plan != nil) != (e.Why == "") || e.Plan != nil && !changes && w.Asked.Largest() > 1 || e.Plan == nil && e.Smaller != nil {
			t.Errorf("%s: plan %v, why %q, smaller %+v", name, e.Plan, e.Why, e.Smaller)
		}
		if e.Profile != "" && (len(e.Knobs) == 0 || e.Saved == nil || e.Saved.Where == "" && e.Saved.Refused == "") {
			t.Errorf("%s: knobs %v, checkpoints %+v", name, e.Knobs, e.Saved)
		}
	}
}

func TestRoomForCheckpoints(t *testing.T) {
	for _, c := range []struct {
		free, each memory.Bytes
		want       []string
	}{
		{2 * memory.GiB, 0, nil},
		{memory.GiB - 1, 0, []string{"disk: "}},
		{8 * memory.GiB, 4 * memory.GiB, nil},
		{8*memory.GiB - 1, 4 * memory.GiB, []string{"disk: a checkpoint takes 4 GiB, and "}},
		{memory.MiB, memory.KiB, nil},
	} {
		wraptest.Warned(t, fmt.Sprint(c.free, c.each), room("out", c.free, c.each), c.want...)
	}
}
