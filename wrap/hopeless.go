package wrap

import (
	"fmt"
	"strings"

	"headroom/memory"
)

// Absurd is how many times the device a request in a micro-batch must be for no
// smaller one to help, whatever its size is: a shape went wrong. Below that one
// sample may still fit; [Outcome.HopelessAt] says so where the micro-batch is known.
const Absurd = 64

// otherKnobs is what helps in the phases that no micro-batch changes.
var otherKnobs = map[memory.Phase]string{
	memory.PhaseLoad: "loading the model needs what it needs whatever the micro-batch: load it in a smaller type or quantized, " +
		"shard it over more devices, or free the device of other models",
	memory.PhaseUpdate: "the optimizer's state does not depend on the micro-batch: shard it, keep it in 8 bits or on the host, or train fewer weights",
	memory.PhaseEval: "evaluation and generation have their own sizes: set a smaller evaluation batch, generate fewer tokens, " +
		"or move the predictions to the host while they are gathered (eval_accumulation_steps)",
	memory.PhaseCheckpoint: "saving gathers the weights whatever the micro-batch: save shards, or gather on the host",
}

// hopeless says why no smaller micro-batch will help; "" if one may.
func hopeless(x fault, f memory.OutOfMemoryError) string {
	message, there := strings.ToLower(x.message), f.Stats.Capacity
	switch advice := otherKnobs[f.Phase]; {
	case strings.Contains(message, "no executable batch size found"):
		return "the command itself tried every batch size down to one"
	case strings.Contains(message, "no available memory for the cache blocks"), strings.Contains(message, "is less than desired gpu memory"):
		return "the inference engine took its share before training began: give it a smaller gpu_memory_utilization"
	case advice != "" && there > 0 && f.Requested > there:
		return fmt.Sprintf("%v were asked for at once of a device of %v; %s", f.Requested, there, advice)
	case advice != "":
		return advice
	case there > 0 && f.Requested/Absurd > there:
		return fmt.Sprintf("%v were asked for at once of a device of %v: a size was computed wrongly", f.Requested, there)
	}
	return ""
}

// HopelessAt is Hopeless for a micro-batch of so many samples: it also says when
// even one of them would ask for more than the device has. A request that does not
// grow with the micro-batch shows at the next size, by the same number of bytes.
func (o Outcome) HopelessAt(micro int) string {
	if o.Hopeless != "" || o.Kind != OutOfMemory || o.Evidence == nil || micro < 1 {
		return o.Hopeless
	}
	f := o.Evidence.Failure
	if one := f.Requested / memory.Bytes(micro); f.Stats.Capacity > 0 && one > f.Stats.Capacity {
		return fmt.Sprintf("%v were asked for at once for %d samples: even one would ask for %v of a device of %v",
			f.Requested, micro, one, f.Stats.Capacity)
	}
	return ""
}
