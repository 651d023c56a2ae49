package wrap

import (
	"slices"
	"strings"
)

// Warnings returns warnings about the command and its environment that do not depend on the
// framework: about settings of PyTorch's allocator, and about launchers and schedulers that
// would themselves start the training again.
func (c Command) Warnings() []Warning {
	var w warnings
	launch, err := Peel(c)
	if err != nil {
		launch = Launch{} // the command's environment can still be checked
	}
	if o, ok := launch.option("max_restarts"); ok && number(o.value) > 0 {
		w.add("retries", "%s starts the command again with the same micro-batch up to %s times before headroom learns of a failure; headroom sets --max-restarts to 0 when it changes the command; give --max-restarts 0 to turn these restarts off from the start", o.layer, o.value)
	}
	if n, _ := launch.getenv(c, "SLURM_RESTART_COUNT"); number(n) > 0 {
		w.add("retries", "Slurm has started this job again (SLURM_RESTART_COUNT is %s): each start of headroom run is a new run; headroom resume RUN continues the previous one", n)
	} else if requeue, set := launch.getenv(c, "SBATCH_REQUEUE"); set && requeue != "0" {
		w.add("retries", "SBATCH_REQUEUE is set: Slurm may start this job again; headroom run would then start a new run, whereas headroom resume RUN continues the previous one")
	}
	allocator(&w, c, launch)
	return w
}

// allocatorVariables are the environment variables with settings of PyTorch's caching
// allocator. The newest name comes first.
var allocatorVariables = []string{"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"}

// allocator adds warnings and advice about settings of PyTorch's allocator: settings that
// contradict each other, have no effect or do harm, and one that may help.
func allocator(w *warnings, c Command, launch Launch) {
	const about = "allocator"
	said, by := map[string]string{}, map[string]string{}
	for _, variable := range allocatorVariables {
		text, _ := launch.getenv(c, variable)
		for key, value := range allocatorSettings(text) {
			if other, twice := said[key]; twice && other != value {
				w.add(about, "%s is %s in %s and %s in %s: which one counts depends on the version of PyTorch; write the same in both", key, other, by[key], value, variable)
				continue
			}
			said[key], by[key] = value, variable
		}
	}
	expandable := strings.EqualFold(said["expandable_segments"], "true")
	var native []string
	for _, key := range []string{"expandable_segments", "garbage_collection_threshold", "max_split_size_mb", "roundup_power2_divisions"} {
		if _, set := said[key]; set {
			native = append(native, key)
		}
	}
	switch splits := slices.DeleteFunc(slices.Clone(native), func(key string) bool { return key == "expandable_segments" }); {
	case said["backend"] == "cudaMallocAsync" && len(native) > 0:
		w.add(about, "with backend:cudaMallocAsync the driver manages the memory, and %s has no effect; remove one of them", strings.Join(native, ", "))
	case said["backend"] == "cudaMallocAsync":
		w.advise(about, "with backend:cudaMallocAsync the driver manages the memory, so an out-of-memory error does not show how fragmented it is")
	case expandable && len(splits) > 0:
		w.add(about, "before PyTorch 2.5, expandable_segments:True together with %s could fail an assertion close to the memory limit; expandable_segments alone is as effective against fragmentation", strings.Join(splits, ", "))
	case said["max_split_size_mb"] != "":
		w.advise(about, "max_split_size_mb:%s keeps larger blocks whole, which itself leaves memory unused; expandable_segments:True is more effective against fragmentation", said["max_split_size_mb"])
	case !expandable && launch.Script+launch.Module != "":
		w.advise(about, "expandable_segments is not on: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (from PyTorch 2.9 on, PYTORCH_ALLOC_CONF) helps where free memory is fragmented, but not otherwise")
	}
	if fraction := said["per_process_memory_fraction"]; fraction != "" && fraction != "1" && fraction != "1.0" {
		w.add(about, "per_process_memory_fraction:%s leaves the rest of the GPU unused", fraction)
	}
}

// allocatorSettings returns the keys and values in the text of one of allocatorVariables. A
// value in brackets may contain commas.
func allocatorSettings(text string) map[string]string {
	all := map[string]string{}
	deep, from := 0, 0
	take := func(to int) {
		if key, value, ok := strings.Cut(text[from:to], ":"); ok {
			all[strings.TrimSpace(key)] = strings.TrimSpace(value)
		}
	}
	for i, r := range text {
		switch {
		case r == '[':
			deep++
		case r == ']':
			deep--
		case r == ',' && deep == 0:
			take(i)
			from = i + 1
		}
	}
	take(len(text))
	return all
}
