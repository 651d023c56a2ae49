package exits

import (
	"fmt"
	"strings"

	"headroom/memory"
	"headroom/recovery"
)

// Absurd is a multiple of the device's memory. If more than that is requested at once, a
// tensor's shape must be wrong, and no smaller micro-batch helps, however large the
// micro-batch was. If less is requested, one sample may still fit; [Outcome.HopelessAt]
// decides once the batch is known.
const Absurd = 64

// OtherKnobs maps each phase in which the memory needed does not depend on the
// micro-batch to the advice for that phase.
var OtherKnobs = map[memory.Phase]string{
	memory.PhaseLoad: "loading the model takes the same memory whatever the micro-batch: load it in a smaller type or quantized, " +
		"shard it over more devices, or remove other models from the device",
	memory.PhaseUpdate: "the optimizer's state does not depend on the micro-batch: shard it, keep it in 8 bits or on the host, or train fewer weights",
	memory.PhaseEval: "evaluation has a batch size of its own: set a smaller evaluation batch, generate fewer tokens, " +
		"or move the predictions to the host while they are gathered (eval_accumulation_steps)",
	memory.PhaseGenerate:   "generation has its own sizes: generate fewer samples at once, or fewer tokens",
	memory.PhaseCheckpoint: "saving gathers the weights whatever the micro-batch: save shards, or gather on the host",
}

// hostSaves is the advice if host memory ran out while a checkpoint was being saved.
const hostSaves = "saving assembles the weights in host memory, whatever the micro-batch: save shards, or write straight to the file"

// hopeless says why no smaller micro-batch will help, or returns "" if one may help.
func hopeless(x fault, f memory.OutOfMemoryError) string {
	message, there := strings.ToLower(x.message), f.Stats.Capacity
	switch advice := OtherKnobs[f.Phase]; {
	case strings.Contains(message, "no executable batch size found"):
		return "the command itself tried every batch size down to one"
	case strings.Contains(message, "no available memory for the cache blocks"), strings.Contains(message, "is less than desired gpu memory"):
		return "the inference engine took its share before training began: give it a smaller gpu_memory_utilization"
	case advice != "" && there > 0 && f.Requested > there:
		return fmt.Sprintf("%v was requested in one allocation on a device with %v; %s", f.Requested, there, advice)
	case advice != "":
		return advice
	case there > 0 && f.Requested/Absurd > there:
		return fmt.Sprintf("%v was requested in one allocation on a device with %v: a size was computed wrongly", f.Requested, there)
	}
	return ""
}

// HopelessAt says why no smaller batch will help a command that runs plan, or returns ""
// if one may help. It corrects o.Hopeless in two cases. A failure in evaluation is not
// hopeless if the evaluation batch can be set. A failure is hopeless if even one sample
// would request more than the device has. For one sample, HopelessAt divides the request
// by the batch. A request that does not grow with the batch is therefore recognised only
// at a smaller batch, where it has the same number of bytes.
func (o Outcome) HopelessAt(plan recovery.Plan) string {
	if o.Kind != OutOfMemory || o.Evidence == nil {
		return o.Hopeless
	}
	f, batch := o.Evidence.Failure.Measured(), plan.Largest()
	if advice := OtherKnobs[memory.PhaseEval]; f.Phase == memory.PhaseEval && plan.Eval > 1 && strings.HasSuffix(o.Hopeless, advice) {
		batch = plan.Eval
	} else if o.Hopeless != "" || batch < 1 {
		return o.Hopeless
	}
	if one := f.Requested / memory.Bytes(batch); f.Stats.Capacity > 0 && one > f.Stats.Capacity {
		return fmt.Sprintf("%v was requested in one allocation for %d samples: even one sample would need %v, and the device has only %v",
			f.Requested, batch, one, f.Stats.Capacity)
	}
	return ""
}
