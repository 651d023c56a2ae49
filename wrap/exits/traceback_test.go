package exits

import (
	"fmt"
	"strings"
	"testing"

	"headroom/memory"
	"headroom/wrap/command"
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
	wrapper := at(site+"torch/optim/optimizer.py", "wrapper", "out = func(*args, **kwargs)")
	closure := wrapper + at(site+"torch/optim/adamw.py", "step", "loss = closure()")
	lightning := at(site+"lightning/pytorch/strategies/strategy.py", "training_step", "return self.lightning_module.training_step(*args, **kwargs)")
	apply := at(site+"torch/nn/modules/module.py", "_apply", "param_applied = fn(param)")
	pretrained := at(site+"transformers/modeling_utils.py", "from_pretrained", "model = cls(config, *model_args, **model_kwargs)")
	saved := at(site+"torch/serialization.py", "save", "_save(")
	for _, c := range []struct {
		name   string
		frames []string
		want   memory.Phase
	}{
		{"raw forward", []string{at("train.py", "main", "out = model(x)"), call}, memory.PhaseForward},
		{"raw forward, loss", []string{at("train.py", "main", "loss = F.cross_entropy(logits, y)"),
			at(site+"torch/nn/functional.py", "cross_entropy", "return torch._C._nn.cross_entropy_loss(")}, memory.PhaseForward},
		{"raw batch to device", []string{at("train.py", "main", "x, y = x.to(device), y.to(device)")}, memory.PhaseUnknown},
		{"raw backward", []string{at("train.py", "main", "loss.backward()"), engine}, memory.PhaseBackward},
		{"raw scaled backward", []string{at("train.py", "main", "scaler.scale(loss).backward()"), engine}, memory.PhaseBackward},
		{"recomputation in backward", []string{at("train.py", "main", "loss.backward()"), engine, recompute}, memory.PhaseBackward},
		{"raw step", []string{at("train.py", "main", "optimizer.step()"), wrapper, adam}, memory.PhaseUpdate},
		{"raw scaler step", []string{at("train.py", "main", "scaler.step(optimizer)"), adam}, memory.PhaseUpdate},
		{"clipping", []string{at("train.py", "main", "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"),
			at(site+"torch/nn/utils/clip_grad.py", "clip_grad_norm_", "total_norm = _get_total_norm(")}, memory.PhaseUpdate},
		{"model to device", []string{at("train.py", "main", "model.to(device)"), apply}, memory.PhaseLoad},
		{"model cuda", []string{at("train.py", "<module>", "net = net.cuda()"), apply}, memory.PhaseLoad},
		{"module to, whatever its name", []string{at("train.py", "main", "thing.to(device)"),
			at(site+"torch/nn/modules/module.py", "_apply", "param_applied = fn(param)")}, memory.PhaseLoad},
		{"layers built on the device", []string{at("model.py", "__init__", "self.fc = nn.Linear(8192, 32768)"),
			at(site+"torch/nn/modules/linear.py", "__init__", "self.weight = Parameter(torch.empty(")}, memory.PhaseLoad},
		{"from_pretrained", []string{at("train.py", "main", "m = AutoModel.from_pretrained(name)"), pretrained}, memory.PhaseLoad},
		{"torch.load", []string{at("train.py", "main", "state = torch.load(path, map_location='cuda')"),
			at(site+"torch/serialization.py", "load", "return _load(")}, memory.PhaseLoad},
		{"torch.save", []string{at("train.py", "main", "torch.save(state, path)"), saved}, memory.PhaseCheckpoint},
		{"save_pretrained", []string{at("train.py", "main", "model.save_pretrained(out)"),
			at(site+"transformers/modeling_utils.py", "save_pretrained", "state_dict = model_to_save.state_dict()")}, memory.PhaseCheckpoint},
		{"Trainer forward", []string{train, at(site+"transformers/trainer.py", "compute_loss", "outputs = model(**inputs)"), call}, memory.PhaseForward},
		{"Trainer backward", []string{train, at(site+"accelerate/accelerator.py", "backward", "loss.backward(**kwargs)"), engine}, memory.PhaseBackward},
		{"Trainer evaluation", []string{at(site+"transformers/trainer.py", "_maybe_log_save_evaluate", "metrics = self._evaluate(trial)"),
			at(site+"transformers/trainer.py", "evaluate", "output = eval_loop("), call}, memory.PhaseEval},
		{"Trainer save", []string{at(site+"transformers/trainer.py", "_save_checkpoint", "self.save_model(output_dir)")}, memory.PhaseCheckpoint},
		{"Accelerate prepare", []string{at("train.py", "main", "model, opt = accelerator.prepare(model, opt)"),
			at(site+"accelerate/accelerator.py", "prepare", "result = tuple("), call}, memory.PhaseLoad},
		{"Accelerate backward", []string{at("train.py", "main", "accelerator.backward(loss)"), engine}, memory.PhaseBackward},
		{"Lightning forward in the closure", []string{at(site+"lightning/pytorch/core/module.py", "optimizer_step", "optimizer.step(closure=optimizer_closure)"),
			closure, lightning, at("module.py", "training_step", "h = self.act(z)")}, memory.PhaseForward},
		{"Lightning backward in the closure", []string{at(site+"lightning/pytorch/core/module.py", "optimizer_step", "optimizer.step(closure=optimizer_closure)"),
			closure, at(site+"lightning/pytorch/core/module.py", "backward", "loss.backward(*args, **kwargs)"), engine}, memory.PhaseBackward},
		{"Lightning update", []string{at(site+"lightning/pytorch/core/module.py", "optimizer_step", "optimizer.step(closure=optimizer_closure)"),
			adam}, memory.PhaseUpdate},
		{"Lightning validation", []string{at(site+"lightning/pytorch/loops/evaluation_loop.py", "run", "self._evaluation_step("),
			at("module.py", "validation_step", "y = self(x)"), call}, memory.PhaseEval},
		{"generation", []string{at("train.py", "main", "ids = model.generate(prompt)"), at(site+"transformers/generation/utils.py", "generate", "result = self._sample("), call}, memory.PhaseGenerate},
		{"GRPO generates while it trains", []string{train, at(site+"trl/trainer/grpo_trainer.py", "_generate_and_score_completions", "self.x("), call}, memory.PhaseGenerate},
		{"torch.save's own frames, below a with", []string{at(site+"torch/serialization.py", "save", "_save("), at(site+"torch/serialization.py", "_save", "zip_file.write_record(name, storage, num_bytes)")}, memory.PhaseCheckpoint},
		{"generation for an evaluation", []string{at(site+"transformers/trainer.py", "evaluate", "output = eval_loop("), at("x.py", "generate", "y = f(x)"), call}, memory.PhaseEval},
		{"a model's own predict", []string{train, at(site+"transformers/trainer.py", "training_step", "loss = self.compute_loss(model, inputs)"),
			at("model.py", "predict", "return self.evaluate(x)")}, memory.PhaseForward},
		{"a name that contains another", []string{at("train.py", "<module>", "train_and_evaluate(cfg)"), at("train.py", "fit", "loss.backward()"), engine}, memory.PhaseBackward},
		{"DeepSpeed initialize", []string{at("train.py", "main", "engine, *_ = deepspeed.initialize(model=model, config=c)"),
			at(site+"deepspeed/__init__.py", "initialize", "engine = DeepSpeedEngine("), call}, memory.PhaseLoad},
		{"nothing that tells", []string{at("train.py", "main", "work()")}, memory.PhaseUnknown},
		{"a scheduler's step", []string{at("train.py", "main", "scheduler.step()")}, memory.PhaseUnknown},
		{"a model that is loaded in the line of the training", []string{at("train.py", "<module>", "run(AutoModel.from_pretrained('gpt2'))"),
			at("train.py", "run", "loss = model(x)"), call}, memory.PhaseForward},
		{"a model that is loaded for the training, and does not fit", []string{at("train.py", "<module>", "run(AutoModel.from_pretrained('gpt2'))"), pretrained, call}, memory.PhaseLoad},
		{"a checkpoint in the line of the training", []string{at("train.py", "<module>", "train(); torch.save(model, 'm.pt')"),
			at("train.py", "train", "loss = model(x)"), call}, memory.PhaseForward},
		{"a checkpoint in the line of the training, and it does not fit", []string{at("train.py", "<module>", "train(); torch.save(model, 'm.pt')"), saved}, memory.PhaseCheckpoint},
		{"backward in the line of the forward pass", []string{at("train.py", "main", "model(x).mean().backward()"), call}, memory.PhaseForward},
		{"backward in the line of the forward pass, which is the user's own", []string{at("train.py", "main", "loss(x).backward()"), at("train.py", "loss", "return (x @ w).exp().mean()")}, memory.PhaseUnknown},
		{"an update in the line of the forward pass", []string{at("train.py", "main", "model(x).sum().backward(); optimizer.step()"), call}, memory.PhaseForward},
		{"the user's evaluate_and_train", []string{at("train.py", "<module>", "evaluate_and_train()"), at("train.py", "evaluate_and_train", "model(x)"), call}, memory.PhaseForward},
		{"the user's evaluate", []string{at("train.py", "<module>", "evaluate()"), at("train.py", "evaluate", "train(model)"), call}, memory.PhaseForward},
		{"the user's generate", []string{at("train.py", "<module>", "generate()"), at("train.py", "generate", "loss = model(noise)"), call}, memory.PhaseForward},
		{"the user's save_checkpoint", []string{at("train.py", "<module>", "save_checkpoint(10)"), at("train.py", "save_checkpoint", "train(10)"), call}, memory.PhaseForward},
		{"the user's load_model", []string{at("train.py", "<module>", "load_model()"), at("train.py", "load_model", "loss = model(x)"), call}, memory.PhaseForward},
		{"the user's backward", []string{at("train.py", "<module>", "backward(model)"), at("train.py", "backward", "loss = model(x)"), call}, memory.PhaseForward},
		{"the user's optimizer_step", []string{at("train.py", "<module>", "optimizer_step()"), at("train.py", "optimizer_step", "loss = model(x)"), call}, memory.PhaseForward},
		{"a net that is moved in the line of the forward pass", []string{at("train.py", "main", "y = model.to(d)(x)"), call}, memory.PhaseForward},
		{"a closure of the user's", []string{at("train.py", "main", "optimizer.step(closure)"), closure, at("train.py", "closure", "loss = (x @ w).exp().mean()")}, memory.PhaseUnknown},
		{"a closure of the user's, in a module", []string{at("train.py", "main", "optimizer.step(closure)"), closure, at("train.py", "closure", "loss = model(x)"), call}, memory.PhaseForward},
		{"an optimizer of the user's", []string{at("train.py", "main", "optimizer.step()"), wrapper, at("lion.py", "step", "state['m'] = torch.zeros_like(p)")}, memory.PhaseUpdate},
		{"an optimizer of the user's, with a closure", []string{at("train.py", "main", "optimizer.step(closure)"), wrapper, at("lion.py", "step", "loss = closure()"),
			at("train.py", "closure", "return (x @ w).exp().mean()")}, memory.PhaseUnknown},
		{"an operation of the user's, in the update", []string{at("train.py", "main", "optimizer.step()"), wrapper, adam, at("mode.py", "__torch_dispatch__", "return run(func)"),
			at("mode.py", "run", "return func()")}, memory.PhaseUpdate},
		{"the worker's frames are skipped", []string{at("train.py", "main", "optimizer.step()"), wrapper, at("/tmp/headroom-worker-1/headroom_train/optimizers.py", "step", "return step(*a)"),
			at("lion.py", "step", "state['m'] = torch.zeros_like(p)")}, memory.PhaseUpdate},
		{"the state of a model", []string{at("train.py", "main", "state = model.state_dict()"), at(site+"torch/nn/modules/module.py", "state_dict", "hook(self, destination, prefix)")}, memory.PhaseCheckpoint},
		{"gradient checkpointing is no saving", []string{at("model.py", "forward", "h = checkpoint(block, h)"),
			at(site+"torch/utils/checkpoint.py", "checkpoint", "return CheckpointFunction.apply(function)")}, memory.PhaseForward},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Classify(command.Exit{Code: 1, Tail: []byte(tracebackOf(c.frames...))})
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
		memory.PhaseEval:     {at(site+"transformers/trainer.py", "evaluate", "walk()"), deep},
		memory.PhaseBackward: {deep, at(site+"torch/autograd/graph.py", "_engine_run_backward", "return Variable._execution_engine.run_backward(")},
	} {
		got := Classify(command.Exit{Code: 1, Tail: []byte(tracebackOf(frames...))})
		if got.Kind != OutOfMemory || got.Evidence.Failure.Phase != want {
			t.Errorf("%s, %+v, want %q", got.Kind, got.Evidence, want)
		}
	}
}

// TestPhaseOfReraisedErrors checks that the phase is read from the caller's traceback if
// a worker thread passed an exception on to its caller. The output then has two
// tracebacks.
func TestPhaseOfReraisedErrors(t *testing.T) {
	text := "Traceback (most recent call last):\n" + at(site+"transformers/trainer.py", "evaluate", "out = model(x)") +
		"torch.OutOfMemoryError: Caught OutOfMemoryError in replica 1 on device 1.\nOriginal " +
		tracebackOf(at("model.py", "forward", "return self.head(x)"))
	got := Classify(command.Exit{Code: 1, Tail: []byte(text)})
	if got.Kind != OutOfMemory || got.Evidence.Failure.Phase != memory.PhaseEval || got.Evidence.Failure.Requested != 2*memory.GiB {
		t.Errorf("%+v, %+v", got, got.Evidence)
	}
}

// TestUsersLine checks that the line that is named is the user's innermost one: not a library's, nor one
// of headroom's worker, through which calls of modules pass.
func TestUsersLine(t *testing.T) {
	worker := stackFrame{"/tmp/headroom-worker-0-1/package/headroom_train/recorder.py", "120", "call"}
	module := stackFrame{site + "torch/nn/modules/module.py", "1775", "_call_impl"}
	train, model := stackFrame{"/home/ada/train.py", "12", "main"}, stackFrame{"/home/ada/model.py", "3", "forward"}
	for _, c := range []struct {
		frames []stackFrame
		want   string
	}{
		{[]stackFrame{train, module, worker, module, model}, "/home/ada/model.py:3"},
		{[]stackFrame{train, module, worker}, "/home/ada/train.py:12"},
		{[]stackFrame{module, worker}, ""},
		{[]stackFrame{{"<string>", "1", "<module>"}, module}, "<string>:1"},
		{[]stackFrame{train, {"<frozen runpy>", "88", "_run_code"}}, "/home/ada/train.py:12"},
	} {
		if got := usersLine(c.frames); got != c.want {
			t.Errorf("%v: %q, want %q", c.frames, got, c.want)
		}
	}
}
