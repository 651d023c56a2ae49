package wrap

import (
	"fmt"
	"strings"
	"testing"

	"headroom/memory"
)

// site is the folder in which packages are installed. Frames in files below it are a
// framework's.
const site = "/opt/venv/lib/python3.11/site-packages/"

// at returns a stack frame as Python prints it.
func at(file, function, code string) string {
	return fmt.Sprintf("  File \"%s\", line 12, in %s\n    %s\n", file, function, code)
}

func tracebackOf(frames ...string) string {
	return "Traceback (most recent call last):\n" + strings.Join(frames, "") +
		"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
}

// TestPhases checks which phase a failure is attributed to, for tracebacks of common
// training loops.
func TestPhases(t *testing.T) {
	train := at(site+"transformers/trainer.py", "_inner_training_loop", "tr_loss_step = self.training_step(model, inputs)")
	call := at(site+"torch/nn/modules/module.py", "_call_impl", "return forward_call(*args, **kwargs)")
	engine := at(site+"torch/autograd/__init__.py", "backward", "_engine_run_backward(")
	recompute := at(site+"torch/utils/checkpoint.py", "recompute_fn", "fn(*args, **kwargs)") + call
	adam := at(site+"torch/optim/adamw.py", "_init_group", "state['exp_avg'] = torch.zeros_like(")
	closure := at(site+"torch/optim/adamw.py", "step", "loss = closure()")
	for _, c := range []struct {
		name   string
		frames []string
		want   memory.Phase
	}{
		{"raw forward", []string{at("train.py", "main", "out = model(x)"), call}, memory.PhaseForward},
		{"raw forward, loss", []string{at("train.py", "main", "loss = F.cross_entropy(logits, y)")}, memory.PhaseForward},
		{"raw batch to device", []string{at("train.py", "main", "x, y = x.to(device), y.to(device)")}, memory.PhaseForward},
		{"raw backward", []string{at("train.py", "main", "loss.backward()"), engine}, memory.PhaseBackward},
		{"raw scaled backward", []string{at("train.py", "main", "scaler.scale(loss).backward()"), engine}, memory.PhaseBackward},
		{"recomputation in backward", []string{at("train.py", "main", "loss.backward()"), engine, recompute}, memory.PhaseBackward},
		{"raw step", []string{at("train.py", "main", "optimizer.step()"), adam}, memory.PhaseUpdate},
		{"raw scaler step", []string{at("train.py", "main", "scaler.step(optimizer)"), adam}, memory.PhaseUpdate},
		{"clipping", []string{at("train.py", "main", "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)")}, memory.PhaseUpdate},
		{"model to device", []string{at("train.py", "main", "model.to(device)")}, memory.PhaseLoad},
		{"model cuda", []string{at("train.py", "<module>", "net = net.cuda()")}, memory.PhaseLoad},
		{"module to, whatever its name", []string{at("train.py", "main", "thing.to(device)"),
			at(site+"torch/nn/modules/module.py", "_apply", "param_applied = fn(param)")}, memory.PhaseLoad},
		{"layers built on the device", []string{at("model.py", "__init__", "self.fc = nn.Linear(8192, 32768)"),
			at(site+"torch/nn/modules/linear.py", "__init__", "self.weight = Parameter(torch.empty(")}, memory.PhaseLoad},
		{"from_pretrained", []string{at("train.py", "main", "m = AutoModel.from_pretrained(name)")}, memory.PhaseLoad},
		{"torch.load", []string{at("train.py", "main", "state = torch.load(path, map_location='cuda')")}, memory.PhaseLoad},
		{"torch.save", []string{at("train.py", "main", "torch.save(state, path)")}, memory.PhaseCheckpoint},
		{"save_pretrained", []string{at("train.py", "main", "model.save_pretrained(out)")}, memory.PhaseCheckpoint},
		{"Trainer forward", []string{train, at(site+"transformers/trainer.py", "compute_loss", "outputs = model(**inputs)"), call}, memory.PhaseForward},
		{"Trainer backward", []string{train, at(site+"accelerate/accelerator.py", "backward", "loss.backward(**kwargs)"), engine}, memory.PhaseBackward},
		{"Trainer evaluation", []string{at(site+"transformers/trainer.py", "_maybe_log_save_evaluate", "metrics = self._evaluate(trial)"),
			at(site+"transformers/trainer.py", "evaluate", "output = eval_loop("), call}, memory.PhaseEval},
		{"Trainer save", []string{at(site+"transformers/trainer.py", "_save_checkpoint", "self.save_model(output_dir)")}, memory.PhaseCheckpoint},
		{"Accelerate prepare", []string{at("train.py", "main", "model, opt = accelerator.prepare(model, opt)")}, memory.PhaseLoad},
		{"Accelerate backward", []string{at("train.py", "main", "accelerator.backward(loss)"), engine}, memory.PhaseBackward},
		{"Lightning forward in the closure", []string{at(site+"lightning/pytorch/core/module.py", "optimizer_step", "optimizer.step(closure=optimizer_closure)"),
			closure, at("module.py", "training_step", "h = self.act(z)")}, memory.PhaseForward},
		{"Lightning backward in the closure", []string{at(site+"lightning/pytorch/core/module.py", "optimizer_step", "optimizer.step(closure=optimizer_closure)"),
			closure, at(site+"lightning/pytorch/core/module.py", "backward", "loss.backward(*args, **kwargs)"), engine}, memory.PhaseBackward},
		{"Lightning update", []string{at(site+"lightning/pytorch/core/module.py", "optimizer_step", "optimizer.step(closure=optimizer_closure)"),
			adam}, memory.PhaseUpdate},
		{"Lightning validation", []string{at(site+"lightning/pytorch/loops/evaluation_loop.py", "run", "self._evaluation_step("),
			at("module.py", "validation_step", "y = self(x)"), call}, memory.PhaseEval},
		{"nanoGPT estimate_loss", []string{at("train.py", "<module>", "losses = estimate_loss()"), at("train.py", "estimate_loss", "logits, loss = model(X, Y)"), call}, memory.PhaseEval},
		{"generation", []string{at("train.py", "main", "ids = model.generate(prompt)"), call}, memory.PhaseGenerate},
		{"GRPO generates while it trains", []string{train, at(site+"trl/trainer/grpo_trainer.py", "_generate_and_score_completions", "self.x("), call}, memory.PhaseGenerate},
		{"torch.save's own frames, below a with", []string{at(site+"torch/serialization.py", "save", "_save("), at(site+"torch/serialization.py", "_save", "zip_file.write_record(name, storage, num_bytes)")}, memory.PhaseCheckpoint},
		{"generation for an evaluation", []string{at(site+"transformers/trainer.py", "evaluate", "output = eval_loop("), at("x.py", "generate", "y = f(x)"), call}, memory.PhaseEval},
		{"a model's own predict", []string{train, at(site+"transformers/trainer.py", "training_step", "loss = self.compute_loss(model, inputs)"),
			at("model.py", "predict", "return self.evaluate(x)")}, memory.PhaseForward},
		{"a name that contains another", []string{at("train.py", "<module>", "train_and_evaluate(cfg)"), at("train.py", "fit", "loss.backward()")}, memory.PhaseBackward},
		{"a builder's name", []string{at("train.py", "<module>", "model = get_model(cfg)"), at("zoo.py", "get_model", "w = torch.empty(n)")}, memory.PhaseLoad},
		{"DeepSpeed initialize", []string{at("train.py", "main", "engine, *_ = deepspeed.initialize(model=model, config=c)"), call}, memory.PhaseLoad},
		{"nothing that tells", []string{at("train.py", "main", "work()")}, memory.PhaseUnknown},
		{"a scheduler's step", []string{at("train.py", "main", "scheduler.step()")}, memory.PhaseUnknown},
		{"gradient checkpointing is no saving", []string{at("model.py", "forward", "h = checkpoint(block, h)"),
			at(site+"torch/utils/checkpoint.py", "checkpoint", "return CheckpointFunction.apply(function)")}, memory.PhaseForward},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Classify(Exit{Code: 1, Tail: []byte(tracebackOf(c.frames...))})
			if got.Kind != OutOfMemory || got.Evidence.Failure.Phase != c.want {
				t.Errorf("%s in %q, want %q", got.Kind, got.Evidence.Failure.Phase, c.want)
			}
			if (got.Hopeless == "") != c.want.SizedByMicro() {
				t.Errorf("in %q hopeless is %q", c.want, got.Hopeless)
			}
		})
	}
}

// TestPhaseOfDeepTracebacks checks that the phase is found in a recursion's traceback with
// thousands of frames, both from the outermost frames and from the innermost ones.
func TestPhaseOfDeepTracebacks(t *testing.T) {
	deep := strings.Repeat(at("tree.py", "walk", "self.walk(node)"), 5000)
	for want, frames := range map[memory.Phase][]string{
		memory.PhaseEval:     {at("train.py", "evaluate", "walk()"), deep},
		memory.PhaseBackward: {deep, at("train.py", "main", "loss.backward()")},
	} {
		got := Classify(Exit{Code: 1, Tail: []byte(tracebackOf(frames...))})
		if got.Kind != OutOfMemory || got.Evidence.Failure.Phase != want {
			t.Errorf("%s, %+v, want %q", got.Kind, got.Evidence, want)
		}
	}
}

// TestPhaseOfReraisedErrors checks that the phase is read from the caller's traceback if
// a worker thread passed an exception on to its caller. The output then has two
// tracebacks.
func TestPhaseOfReraisedErrors(t *testing.T) {
	text := "Traceback (most recent call last):\n" + at("train.py", "evaluate", "out = model(x)") +
		"torch.OutOfMemoryError: Caught OutOfMemoryError in replica 1 on device 1.\nOriginal " +
		tracebackOf(at("model.py", "forward", "return self.head(x)"))
	got := Classify(Exit{Code: 1, Tail: []byte(text)})
	if got.Kind != OutOfMemory || got.Evidence.Failure.Phase != memory.PhaseEval || got.Evidence.Failure.Requested != 2*memory.GiB {
		t.Errorf("%+v, %+v", got, got.Evidence)
	}
}
