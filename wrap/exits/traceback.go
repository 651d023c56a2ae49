package exits

import (
	"regexp"
	"slices"
	"strings"
	"sync"

	"headroom/memory"
)

// stackFrame is one entry of a Python traceback. The line of source that Python prints
// below an entry is not kept: it says what else the line does, not which part of it failed.
type stackFrame struct {
	file, line, function string
}

// frameLines match the first line of a frame, as Python and as Rich print it. Their long
// repetitions take 1 ms to compile, and only a command that has failed needs them.
var frameLines = sync.OnceValue(func() []*regexp.Regexp {
	return []*regexp.Regexp{
		regexp.MustCompile(`File "([^"]{1,512})", line (\d{1,9})(?:, in (\S{1,200}))?`),
		regexp.MustCompile(`^ ?([^\s:]{1,512}\.pyx?):(\d{1,9}) in (\S{1,200})`),
	}
})

// richCode matches the line of source that Rich marks in a frame.
var richCode = regexp.MustCompile(`^ ?❱ *\d+ [│|]? ?`)

// framesMost is how many frames of a traceback are kept. The innermost frames show what
// was being done, and the outermost ones show which part of the work it belonged to. If a
// recursion has thousands of frames, those in the middle are left out.
const framesMost = 256

func frameOf(text string) (stackFrame, bool) {
	for _, pattern := range frameLines() {
		if at := pattern.FindStringSubmatch(text); at != nil {
			return stackFrame{file: strings.ReplaceAll(at[1], `\`, "/"), line: at[2], function: at[3]}, true
		}
	}
	return stackFrame{}, false
}

// part is a part of a library: files, and functions in them. A function of the user's is
// never a sign of a phase, whatever its name is, and neither is anything in the user's
// line: `train(); torch.save(model)` may have failed in either call. A call that failed
// inside a library has a frame there, which says which call it was.
type part struct {
	path      string   // part of a file's path
	functions []string // names of functions; nil means all in those files
}

func (p part) has(f stackFrame) bool {
	return strings.Contains(f.file, p.path) && (p.functions == nil || slices.Contains(p.functions, f.function))
}

// in returns the part of a library with the named functions, or with all functions if none
// are named.
func in(path string, functions ...string) part { return part{path, functions} }

// sign lists the parts of libraries whose frames show that a phase was under way.
type sign struct {
	phase memory.Phase
	parts []part
}

func (s sign) shows(f stackFrame) bool {
	return slices.ContainsFunc(s.parts, func(p part) bool { return p.has(f) })
}

// generation lists the signs of the generation of samples, such as text. It is a phase of
// its own even within a step, since reinforcement learning generates in the middle of one.
var generation = sign{memory.PhaseGenerate, []part{
	in("/transformers/generation/"), in("/trl/", "generate", "_generate", "_generate_and_score_completions"), in("/vllm/"),
}}

// enclosing lists signs of phases that include whatever they call: a forward pass in an
// evaluation is evaluation. The outermost sign counts. Signs within a step do not count:
// a model's forward pass may move one of its parts.
var enclosing = []sign{
	{memory.PhaseEval, []part{
		in("/transformers/trainer", "evaluate", "_evaluate", "evaluation_loop", "prediction_loop", "prediction_step", "predict"),
		in("/trl/", "evaluate", "evaluation_loop", "prediction_step"), in("/sentence_transformers/evaluation/"),
		in("/loops/evaluation_loop.py"), in("/loops/prediction_loop.py"), in("/loops/epoch/evaluation_epoch_loop.py"),
		in("/pytorch/trainer/trainer.py", "_run_sanity_check"), in("/pytorch_lightning/trainer/trainer.py", "_run_sanity_check"),
		in("/composer/trainer/", "eval", "_eval_loop", "predict"), in("/megatron/training", "evaluate", "evaluate_and_print_results"),
		in("/fairseq_cli/", "validate"), in("/fairseq/", "valid_step"), in("/deepspeed/", "eval_batch"),
		in("/mmengine/model/", "val_step", "test_step"), in("/detectron2/evaluation/"), in("/ultralytics/engine/validator.py"),
		in("/fastai/learner.py", "_do_epoch_validate", "validate", "get_preds"),
		in("/keras/", "evaluate", "predict", "test_step", "predict_step"),
	}},
	{memory.PhaseCheckpoint, []part{
		in("/torch/serialization.py", "save", "_save", "_legacy_save"), in("/torch/distributed/checkpoint/state_dict_saver.py"),
		in("/torch/distributed/checkpoint/state_dict.py", "get_state_dict", "get_model_state_dict", "get_optimizer_state_dict"),
		in("/torch/nn/modules/module.py", "state_dict"), in("/torch/optim/optimizer.py", "state_dict"),
		in("/torch/distributed/fsdp/_state_dict_utils.py", "_pre_state_dict_hook", "_post_state_dict_hook", "_full_post_state_dict_hook"),
		in("/torch/distributed/fsdp/_optim_utils.py", "_optim_state_dict"), in("/safetensors/", "save_file", "save_model", "save"),
		in("/transformers/trainer", "_save_checkpoint", "save_model", "_save", "_save_optimizer_and_scheduler"),
		in("/transformers/modeling_utils.py", "save_pretrained"), in("/peft/", "save_pretrained"), in("/diffusers/", "save_pretrained"),
		in("/pytorch/trainer/", "save_checkpoint", "dump_checkpoint"), in("/pytorch_lightning/trainer/", "save_checkpoint", "dump_checkpoint"),
		in("/accelerate/", "save_state", "save_model", "get_state_dict"), in("/deepspeed/runtime/", "save_checkpoint", "save_16bit_model"),
		in("/composer/", "save_checkpoint"), in("/megatron/", "save_checkpoint"), in("/fairseq/", "save_checkpoint"), in("/mmengine/", "save_checkpoint"),
	}},
	{memory.PhaseLoad, []part{
		in("/torch/serialization.py", "load", "_load", "_legacy_load"), in("/torch/distributed/checkpoint/state_dict_loader.py"),
		in("/torch/distributed/checkpoint/state_dict.py", "set_state_dict", "set_model_state_dict", "set_optimizer_state_dict"),
		in("/torch/nn/modules/module.py", "_apply", "convert", "to_empty", "load_state_dict"), in("/torch/optim/optimizer.py", "load_state_dict"),
		in("/torch/nn/", "__init__", "reset_parameters"), in("/torch/nn/init.py"), in("/torch/distributed/fsdp/", "__init__", "fully_shard"),
		in("/safetensors/", "load_file", "load_model"),
		in("/transformers/", "from_pretrained", "_load_pretrained_model", "_load_state_dict_into_model", "_init_weights"),
		in("/transformers/trainer", "_move_model_to_device", "_load_from_checkpoint", "_load_optimizer_and_scheduler", "_load_best_model", "create_optimizer"),
		in("/peft/", "from_pretrained"), in("/diffusers/", "from_pretrained"), in("/timm/", "create_model", "load_checkpoint"),
		in("/pytorch/", "_call_configure_model", "model_to_device", "restore_model", "restore_optimizers"),
		in("/pytorch_lightning/", "_call_configure_model", "model_to_device", "restore_model", "restore_optimizers"),
		in("/accelerate/", "prepare", "prepare_model", "load_state", "load_checkpoint_and_dispatch", "dispatch_model"),
		in("/deepspeed/__init__.py", "initialize"), in("/deepspeed/runtime/", "__init__", "load_checkpoint"),
		in("/megatron/", "setup_model_and_optimizer", "load_checkpoint"), in("/fairseq/", "load_checkpoint", "build_model"), in("/mmengine/", "load_checkpoint"),
	}},
}

// inner lists signs of the phases of a step. The innermost sign counts, with two
// exceptions: whatever backward calls, such as recomputation, counts as backward, and what
// an optimizer calls in the user's code is not its update (see [phaseOf]).
var inner = []sign{
	{memory.PhaseBackward, []part{
		in("/torch/autograd/__init__.py", "backward", "grad"), in("/torch/autograd/graph.py", "_engine_run_backward"), in("/torch/_tensor.py", "backward"),
		in("/torch/autograd/variable.py", "backward"), in("/deepspeed/runtime/", "backward"),
	}},
	{memory.PhaseUpdate, []part{
		in("/torch/optim/"), in("/bitsandbytes/optim/"), in("/apex/optimizers/"), in("/fairseq/optim/"), in("/megatron/core/optimizer/"),
		in("/torch/nn/utils/clip_grad.py"), in("/torch/amp/grad_scaler.py", "step", "unscale_"), in("/torch/cuda/amp/grad_scaler.py", "step", "unscale_"),
		in("/deepspeed/runtime/", "step", "_take_model_step"), in("/keras/", "apply_gradients"),
	}},
	{memory.PhaseForward, []part{
		in("/torch/nn/modules/", "forward", "_call_impl", "_wrapped_call_impl", "__call__"), in("/torch/nn/functional.py"), in("/torch/_dynamo/eval_frame.py"),
		in("/torch/utils/checkpoint.py"), in("/torch/autograd/function.py"),
		in("/transformers/trainer", "training_step", "compute_loss"), in("/strategies/strategy.py", "training_step"),
		in("/megatron/core/pipeline_parallel/"), in("/deepspeed/runtime/", "forward"), in("/fairseq/tasks/", "train_step"),
	}},
}

// worker reports whether a frame is of headroom's own worker, whose frames say nothing
// about the command.
func (f stackFrame) worker() bool { return strings.Contains(f.file, "/headroom_train/") }

// users reports whether a frame is of the user's own code, as opposed to a library's or
// Python's.
func (f stackFrame) users() bool {
	if f.worker() || containsAny(f.file, []string{"/site-packages/", "/dist-packages/", "/lib/python3", "/torch/nn/", "/torch/optim/", "/torch/autograd/"}) {
		return false
	}
	return !strings.HasPrefix(f.file, "<") || slices.Contains([]string{"<string>", "<stdin>"}, f.file)
}

// phaseOf returns the phase in which the error of a traceback happened. frames are the
// traceback's frames, outermost first.
//
// An optimizer calls the user's code in three cases. Its closure is another forward and
// backward pass. A step that the user has written is part of the update; only a function that
// torch/optim/optimizer.py calls itself is such a step. So is whatever stands in for an operation.
func phaseOf(frames []stackFrame) memory.Phase {
	phase, caller, operation := memory.PhaseUnknown, "", false
	for _, f := range frames {
		if f.worker() {
			continue
		}
		if generation.shows(f) {
			return generation.phase
		}
		if p := shown(enclosing, f); p != memory.PhaseUnknown && phase == memory.PhaseUnknown {
			return p
		}
		p := shown(inner, f)
		operation = operation || f.function == "__torch_dispatch__" || f.function == "__torch_function__"
		if phase == memory.PhaseUpdate && f.users() && !operation && !strings.HasSuffix(caller, "/torch/optim/optimizer.py") {
			phase = memory.PhaseUnknown
		}
		if p != memory.PhaseUnknown && phase != memory.PhaseBackward {
			phase = p
		}
		caller = f.file
	}
	return phase
}

// shown returns the phase of the first of the signs that a frame shows, or
// [memory.PhaseUnknown] if it shows none.
func shown(signs []sign, f stackFrame) memory.Phase {
	for _, s := range signs {
		if s.shows(f) {
			return s.phase
		}
	}
	return memory.PhaseUnknown
}

// usersLine returns the innermost line of the user's own code among the frames, as
// FILE:LINE, or "" if there is none.
func usersLine(frames []stackFrame) string {
	for _, f := range slices.Backward(frames) {
		if f.users() {
			return f.file + ":" + f.line
		}
	}
	return ""
}
