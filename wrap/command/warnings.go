package command

import (
	"fmt"
	"slices"
	"strings"
)

// Warnings returns warnings about the command and its environment that do not depend on the
// framework: about settings of PyTorch's allocator, and about launchers and schedulers that
// would themselves start the training again.
func (c Line) Warnings() []Warning {
	var w Warnings
	launch, err := Peel(c)
	if err != nil {
		launch = Launch{} // the command's environment can still be checked
	}
	if o, ok := launch.Option("max_restarts"); ok && Number(o.Value) > 0 {
		w.Add("retries", "%s starts the command again with the same micro-batch up to %s times before headroom learns of a failure; headroom sets --max-restarts to 0 when it changes the command; give --max-restarts 0 to turn these restarts off from the start", o.Layer, o.Value)
	}
	if n, _ := launch.Getenv(c, "SLURM_RESTART_COUNT"); Number(n) > 0 {
		w.Add("retries", "Slurm has started this job again (SLURM_RESTART_COUNT is %s): each start of headroom run is a new run; headroom resume RUN continues the previous one", n)
	} else if requeue, set := launch.Getenv(c, "SBATCH_REQUEUE"); set && requeue != "0" {
		w.Add("retries", "SBATCH_REQUEUE is set: Slurm may start this job again; headroom run would then start a new run, whereas headroom resume RUN continues the previous one")
	}
	allocator(&w, c, launch)
	return w
}

// AllocatorVariables are the environment variables with settings of PyTorch's caching
// allocator. The newest name comes first.
var AllocatorVariables = []string{"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"}

// about is what warnings about settings of the allocator are about.
const about = "allocator"

// allocatorSaid returns the settings of PyTorch's allocator, and adds warnings about those that
// contradict each other.
func allocatorSaid(w *Warnings, c Line, launch Launch) map[string]string {
	said, by := map[string]string{}, map[string]string{}
	for _, variable := range AllocatorVariables {
		text, _ := launch.Getenv(c, variable)
		for key, value := range AllocatorSettings(text) {
			if other, twice := said[key]; twice && other != value {
				w.Add(about, "%s is %s in %s and %s in %s: which one counts depends on the version of PyTorch; write the same in both", key, other, by[key], value, variable)
				continue
			}
			said[key], by[key] = value, variable
		}
	}
	return said
}

// allocator adds warnings and advice about settings of PyTorch's allocator: settings that
// contradict each other, have no effect or do harm, and one that may help.
func allocator(w *Warnings, c Line, launch Launch) {
	said := allocatorSaid(w, c, launch)
	expandable := strings.EqualFold(said["expandable_segments"], "true")
	var native []string
	for _, key := range []string{"expandable_segments", "garbage_collection_threshold", "max_split_size_mb", "roundup_power2_divisions"} {
		if _, set := said[key]; set {
			native = append(native, key)
		}
	}
	switch splits := slices.DeleteFunc(slices.Clone(native), func(key string) bool { return key == "expandable_segments" }); {
	case said["backend"] == "cudaMallocAsync" && len(native) > 0:
		w.Add(about, "with backend:cudaMallocAsync the driver manages the memory, and %s has no effect; remove one of them", strings.Join(native, ", "))
	case said["backend"] == "cudaMallocAsync":
		w.Advise(about, "with backend:cudaMallocAsync the driver manages the memory, so an out-of-memory error does not show how fragmented it is")
	case expandable && len(splits) > 0:
		w.Add(about, "before PyTorch 2.5, expandable_segments:True together with %s could fail an assertion close to the memory limit; expandable_segments alone is as effective against fragmentation", strings.Join(splits, ", "))
	case said["max_split_size_mb"] != "":
		w.Advise(about, "max_split_size_mb:%s keeps larger blocks whole, which itself leaves memory unused; expandable_segments:True is more effective against fragmentation", said["max_split_size_mb"])
	case !expandable && launch.Script+launch.Module != "":
		w.Advise(about, "expandable_segments is not on: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (from PyTorch 2.9 on, PYTORCH_ALLOC_CONF) helps where free memory is fragmented, but not otherwise")
	}
	if fraction := said["per_process_memory_fraction"]; fraction != "" && fraction != "1" && fraction != "1.0" {
		w.Add(about, "per_process_memory_fraction:%s leaves the rest of the GPU unused", fraction)
	}
}

// AllocatorSettings returns the keys and values in the text of one of allocatorVariables. A
// value in brackets may contain commas.
func AllocatorSettings(text string) map[string]string {
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

// Warning is something that the user should know before a long run rather than after it.
type Warning struct {
	About  string `json:"about"`            // "checkpoints", "retries", "batch", "allocator" or "disk"
	Text   string `json:"text"`             // what may happen, and what to do about it
	Advice bool   `json:"advice,omitempty"` // it is only advice: by itself it makes nothing fail
}

// Warnings collects warnings.
type Warnings []Warning

// Add adds a warning whose text is formatted as by [fmt.Sprintf].
func (w *Warnings) Add(about, format string, args ...any) {
	*w = append(*w, Warning{About: about, Text: fmt.Sprintf(format, args...)})
}

// Advise is Add for what is only advice.
func (w *Warnings) Advise(about, format string, args ...any) {
	*w = append(*w, Warning{About: about, Text: fmt.Sprintf(format, args...), Advice: true})
}
