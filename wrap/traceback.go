package wrap

import (
	"strings"

	"headroom/memory"
)

// stackFrame is one entry of a Python traceback.
type stackFrame struct {
	file, function string
	code           string // the line of source that was run; "" if the source is not available
}

var (
	pythonFrame = lazily(`File "([^"]{1,512})", line \d+(?:, in (\S{1,200}))?`)
	richFrame   = lazily(`^ ?([^\s:]{1,512}\.pyx?):\d+ in (\S{1,200})`)
	richCode    = lazily(`^ ?❱ *\d+ [│|]? ?(.*)`)
)

// framesMost is how many frames of a traceback are kept. The innermost frames show what
// was being done, and the outermost ones show which part of the work it belonged to. If a
// recursion has thousands of frames, those in the middle are left out.
const framesMost = 256

func frameOf(text string) (stackFrame, bool) {
	for _, pattern := range []lazyRegexp{pythonFrame, richFrame} {
		if at := pattern().FindStringSubmatch(text); at != nil {
			return stackFrame{file: strings.ReplaceAll(at[1], `\`, "/"), function: at[2]}, true
		}
	}
	return stackFrame{}, false
}

// sign describes the stack frames that show that a phase was under way.
type sign struct {
	phase     memory.Phase
	functions []string // names of functions
	code      lazyRegexp
	files     []string // parts of a file's path
}

// calls returns an expression that matches a call to one of the functions. It matches
// only whole names: a call to train_and_evaluate is not a call to evaluate.
func calls(names ...string) lazyRegexp {
	return lazily(`\b(?:` + strings.Join(names, "|") + `)\(`)
}

// generation lists the signs of the generation of samples, such as text. It is a phase of
// its own even within a step, since reinforcement learning generates in the middle of one.
var generation = sign{
	phase:     memory.PhaseGenerate,
	functions: []string{"generate", "_generate", "_generate_and_score_completions"},
	code:      calls("generate"),
	files:     []string{"/vllm/"},
}

// enclosing lists signs of phases that include whatever they call: a forward pass in an
// evaluation is evaluation. The outermost sign counts. Signs within a step do not count,
// since a model may have a method named predict.
var enclosing = []sign{
	{
		phase: memory.PhaseEval,
		functions: []string{"evaluate", "evaluation_loop", "prediction_loop", "prediction_step", "validation_step", "validate",
			"test_step", "estimate_loss", "predict", "_run_validation", "run_validation", "run_evaluation",
			"_run_sanity_check", "_run_eval", "eval_step", "eval_epoch", "val_epoch",
			"validate_one_epoch", "do_eval", "log_validation", "_validate", "evaluate_and_print_results", "run_test"},
		code:  calls("evaluate", "estimate_loss", "validate", "validation", "eval_step", "predict"),
		files: []string{"/loops/evaluation_loop.py", "/loops/prediction_loop.py"},
	},
	{
		phase: memory.PhaseCheckpoint,
		functions: []string{"save_pretrained", "save_model", "_save_checkpoint", "save_checkpoint", "_save_optimizer_and_scheduler",
			"dump_checkpoint", "save_state", "_save_model_and_optimizer", "_save", "save_file"},
		code: calls(`torch\.save`, "save_pretrained", "_?save_checkpoint", `dcp\.save`, "save_model", "save_state",
			"get_model_state_dict", "full_state_dict", "save_file", "write_record", "_open_zipfile_writer"),
		files: []string{"/distributed/checkpoint/state_dict_saver.py"},
	},
	{
		phase: memory.PhaseLoad,
		functions: []string{"from_pretrained", "load_checkpoint", "load_state_dict", "_load_pretrained_model", "_move_model_to_device",
			"_load_from_checkpoint", "prepare_model", "_load_optimizer_and_scheduler", "create_optimizer", "load_model",
			"_load_state_dict_into_model", "configure_model", "model_to_device", "_load_checkpoint", "init_model", "build_model", "get_model"},
		code: calls("from_pretrained", `torch\.load`, "load_checkpoint", `deepspeed\.initialize`, "load_state_dict",
			"DistributedDataParallel", "DDP", "FullyShardedDataParallel", "FSDP", "fully_shard", `accelerator\.prepare`, "load_model"),
		files: []string{"/distributed/checkpoint/state_dict_loader.py"},
	},
}

// inner lists signs of the phases of a step. The innermost sign counts, with one
// exception: whatever backward calls, such as recomputation, counts as backward.
var inner = []sign{
	{
		phase:     memory.PhaseBackward,
		functions: []string{"backward", "_engine_run_backward", "backward_fn", "_backward", "run_backward"},
		code:      calls("backward", `autograd\.grad`),
		files:     []string{"/torch/autograd/__init__.py", "/torch/autograd/graph.py"},
	},
	{
		phase: memory.PhaseUpdate,
		functions: []string{"optimizer_step", "_take_model_step", "_init_group", "_multi_tensor_adamw", "_multi_tensor_adam",
			"_single_tensor_adamw", "_single_tensor_adam", "apply_gradients", "clip_grad_norm_", "_fused_adamw", "init_state"},
		code:  calls(`(?:\w*optimizers?|opt|\w+_opt|optim|\w*scaler)\.step`, "clip_grad_norm_"),
		files: []string{"/torch/optim/", "/bitsandbytes/optim/"},
	},
	{
		phase: memory.PhaseForward,
		functions: []string{"forward", "_call_impl", "_wrapped_call_impl", "training_step", "train_step", "compute_loss", "forward_step",
			"closure", "forward_backward_func"},
		code: calls("model", "net", "criterion", "loss_fn", "cross_entropy"),
	},
}

// movesModel matches a line that moves a model rather than a batch to a device.
var movesModel = lazily(`(?i)\b(?:\w*model|net|network|module|unet|vae|\w*encoder|\w*decoder|transformer|teacher|student|policy|critic|\w*net)(?:\.\w+)?\.(?:to|cuda|half|bfloat16)\(`)

// movesBatch matches any line that moves something to a device.
var movesBatch = lazily(`\.(?:to|cuda)\(`)

// phaseOf returns the phase in which the error of a traceback happened. frames are the
// traceback's frames, outermost first.
func phaseOf(frames []stackFrame) memory.Phase {
	phase := memory.PhaseUnknown
	for _, f := range frames {
		if generation.shows(f) {
			return generation.phase
		}
		if p := outside(f); p != memory.PhaseUnknown && phase == memory.PhaseUnknown {
			return p
		}
		for _, s := range inner {
			if s.shows(f) && phase != memory.PhaseBackward {
				phase = s.phase
				break
			}
		}
	}
	if phase == memory.PhaseUnknown && len(frames) > 0 && movesBatch().MatchString(frames[len(frames)-1].code) {
		return memory.PhaseForward // the micro-batch is being moved to the model's device
	}
	return phase
}

// outside returns the phase outside a step that a frame shows, or [memory.PhaseUnknown] if
// it shows none.
func outside(f stackFrame) memory.Phase {
	for _, s := range enclosing {
		if s.shows(f) {
			return s.phase
		}
	}
	if loads(f) {
		return memory.PhaseLoad
	}
	return memory.PhaseUnknown
}

func (s sign) shows(f stackFrame) bool {
	for _, name := range s.functions {
		if f.function == name {
			return true
		}
	}
	return s.code != nil && s.code().MatchString(f.code) || containsAny(f.file, s.files)
}

// loads reports whether a frame builds, fills or moves a model.
func loads(f stackFrame) bool {
	torchModule := strings.HasSuffix(f.file, "torch/nn/modules/module.py")
	switch f.function {
	case "_apply", "convert", "to_empty":
		return torchModule
	case "__init__", "reset_parameters", "_init_weights":
		return strings.Contains(f.file, "torch/nn/") || strings.Contains(f.file, "/deepspeed/runtime/") || f.function != "__init__"
	}
	return movesModel().MatchString(f.code)
}
