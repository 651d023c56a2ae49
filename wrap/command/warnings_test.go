package command

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// TestCommandWarnings checks the warnings about the command and its environment, which do
// not depend on the framework.
func TestCommandWarnings(t *testing.T) {
	const on = "PYTORCH_ALLOC_CONF=expandable_segments:True"
	const off = "allocator, advice: expandable_segments is not on: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
	for _, c := range []struct {
		env     string
		command string
		want    []string
	}{
		{"", "python t.py", []string{off}},
		{"", "./train", nil},
		{"", "bash train.sh", nil},
		{on, "python t.py", nil},
		{"", on + " python t.py", nil},
		{"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:true", "python t.py", nil},
		{"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False", "python t.py", []string{off}},
		{on + " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False", "python t.py", []string{"allocator: expandable_segments is True in PYTORCH_ALLOC_CONF and False in PYTORCH_CUDA_ALLOC_CONF"}},
		{on + " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", "python t.py", nil},
		{on + ",max_split_size_mb:128", "python t.py", []string{"allocator: before PyTorch 2.5, expandable_segments:True together with max_split_size_mb could fail"}},
		{"PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128", "python t.py", []string{"allocator, advice: max_split_size_mb:128 keeps"}},
		{"PYTORCH_CUDA_ALLOC_CONF=roundup_power2_divisions:[256:1,512:2],expandable_segments:True", "python t.py", []string{"allocator: before PyTorch 2.5, expandable_segments:True together with roundup_power2_divisions"}},
		{"PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync", "python t.py", []string{"allocator, advice: with backend:cudaMallocAsync the driver manages"}},
		{"PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync,expandable_segments:True", "python t.py", []string{"allocator: with backend:cudaMallocAsync the driver manages the memory, and expandable_segments has no effect"}},
		{on + ",per_process_memory_fraction:0.25", "python t.py", []string{"allocator: per_process_memory_fraction:0.25 leaves"}},
		{on, "torchrun --max-restarts 3 --nproc-per-node 2 t.py", []string{"retries: torchrun starts the command again with the same micro-batch up to 3 times"}},
		{on, "torchrun --max_restarts=0 t.py", nil},
		{on, "accelerate launch --max_restarts 2 --num_processes 2 t.py", []string{"retries: accelerate launch starts the command again with the same micro-batch up to 2"}},
		{on + " SLURM_RESTART_COUNT=1 SBATCH_REQUEUE=1", "srun python t.py", []string{"retries: Slurm has started this job again (SLURM_RESTART_COUNT is 1)"}},
		{on + " SLURM_RESTART_COUNT=0", "srun python t.py", nil},
		{on + " SBATCH_REQUEUE=", "srun python t.py", []string{"retries: SBATCH_REQUEUE is set"}},
	} {
		var got []string
		for _, w := range (Line{Args: strings.Fields(c.command), Env: strings.Fields(c.env), Dir: "/"}).Warnings() {
			if w.Advice {
				w.About += ", advice"
			}
			got = append(got, w.About+": "+w.Text)
		}
		if !slices.EqualFunc(got, c.want, strings.HasPrefix) {
			t.Errorf("%s %s: %q, want %q", c.env, c.command, got, c.want)
		}
	}
}

func TestAllocatorSettings(t *testing.T) {
	got := AllocatorSettings("roundup_power2_divisions:[256:1,512:2,>:4], backend : native,alone,max_split_size_mb:64,")
	want := map[string]string{"roundup_power2_divisions": "[256:1,512:2,>:4]", "backend": "native", "max_split_size_mb": "64"}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for _, odd := range []string{"", "[", "]]:a,b:c", ":", ",,"} {
		if all := AllocatorSettings(odd); len(all) > 1 {
			t.Errorf("%q: %v", odd, all)
		}
	}
}
