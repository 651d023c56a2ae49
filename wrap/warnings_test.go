package wrap

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"headroom/memory"
)

// about formats warnings as lines "about: text", and advice as "about, advice: text".
func about(all []Warning) string {
	var b strings.Builder
	for _, w := range all {
		advice := ""
		if w.Advice {
			advice = ", advice"
		}
		fmt.Fprintf(&b, "%s%s: %s\n", w.About, advice, w.Text)
	}
	return b.String()
}

// warned checks that got has one warning per entry of want, and that each begins with the
// corresponding entry.
func warned(t *testing.T, what string, got []Warning, want ...string) {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(about(got), "\n"), "\n")
	if len(got) == 0 {
		lines = nil
	}
	if !slices.EqualFunc(lines, want, strings.HasPrefix) {
		t.Errorf("%s: got\n%s\nwant\n%s", what, strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
}

// TestWarnings checks the warnings about a profile and its knobs. Most cases have a
// counterpart without that warning.
func TestWarnings(t *testing.T) {
	const head = "name: own\nmatch: {flags: [--bs]}\nknobs: {micro: {flags: [--bs], min: 4}, accumulation: {flags: [--acc], default: 1}}\nlaw: {write: [micro, accumulation]}\n"
	const epochs, single = "checkpoints: {root: ., glob: 'c-*', cadence: epoch}\nresume: {mode: auto}\n", "checkpoints: {root: ., glob: ckpt.pt, cadence: steps}\nresume: {mode: auto}\n"
	for _, c := range []struct {
		profile, command string
		want             []string
	}{
		{"transformers", "run_clm.py --output_dir o", nil},
		{"transformers", "run_clm.py --output_dir o --save_strategy no", []string{"checkpoints: --save_strategy no saves no checkpoint"}},
		{"transformers", "run_clm.py --output_dir o --save_strategy epoch", []string{"checkpoints: checkpoints are written only at the ends of epochs"}},
		{"transformers", "run_clm.py --output_dir o --max_steps 500", []string{"checkpoints: a checkpoint every 500 steps (--save_steps) comes too late for training that ends at step 500"}},
		{"transformers", "run_clm.py --output_dir o --max_steps 4000", []string{"checkpoints: a checkpoint every 500 steps, of 4000 in all (--save_steps): a failure costs up to 500"}},
		{"transformers", "run_clm.py --output_dir o --max_steps 5000", nil},
		{"transformers", "run_clm.py --output_dir o --max_steps 4000 --save_steps 400", nil},
		{"transformers", "run_clm.py --output_dir o --max_steps 4000 --save_steps 0.5", nil},
		{"transformers", "run_clm.py --output_dir o --auto_find_batch_size yes", []string{"retries: --auto_find_batch_size makes transformers retry by itself"}},
		{"transformers", "run_clm.py --output_dir o --auto_find_batch_size False", nil},
		{"transformers", "run_clm.py --output_dir o --overwrite_output_dir", []string{"checkpoints: --overwrite_output_dir makes the command start from scratch each time"}},
		{"transformers", "run_clm.py --output_dir o --overwrite_output_dir False", nil},
		{"transformers", "run_clm.py --output_dir o --per_device_train_batch_size 1", []string{"batch: the micro-batch is 1 already"}},
		{"transformers", "run_clm.py --output_dir o --per_device_train_batch_size 31", []string{"batch: the next micro-batch below 31 that keeps the effective batch 31 is 1: an effective batch such as 16, which has more divisors,"}},
		{"transformers", "run_clm.py --output_dir o --per_device_train_batch_size 15", nil},
		{"trl", "sft.py --output_dir o", []string{"checkpoints: trl can resume from a checkpoint only with trl 1.16.0 or later"}},
		{"trl", "sft.py --output_dir o --save_strategy no", []string{"checkpoints: --save_strategy no saves no", "checkpoints: trl can resume"}},
		{head + epochs, "t.py --bs 4", []string{"checkpoints: checkpoints are written only at the ends of epochs", "batch: the micro-batch is 4, and own needs at least 4"}},
		{head + epochs, "t.py --bs 8", []string{"checkpoints: checkpoints are written only at the ends of epochs"}},
		{head + single, "t.py --bs 8", []string{"checkpoints: ckpt.pt is a single file, which every save overwrites"}},
		{head, "t.py --bs 8", []string{"checkpoints: headroom knows no way to resume own from a checkpoint"}},
	} {
		profiles, name := Builtin(), c.profile
		if strings.Contains(c.profile, "\n") {
			p, err := ParseProfile("own.yaml", []byte(c.profile))
			if err != nil {
				t.Fatal(err)
			}
			profiles, name = []Profile{p}, p.Name
		}
		m, err := Recognise(Command{Args: strings.Fields("python " + c.command), Dir: "/"}, profiles, Given{Profile: name})
		if err != nil {
			t.Fatal(err)
		}
		warned(t, c.command, m.Warnings(), c.want...)
	}
}

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
		command := Command{Args: strings.Fields(c.command), Env: strings.Fields(c.env), Dir: "/"}
		warned(t, c.env+" "+c.command, command.Warnings(), c.want...)
	}
}

func TestAllocatorSettings(t *testing.T) {
	got := allocatorSettings("roundup_power2_divisions:[256:1,512:2,>:4], backend : native,alone,max_split_size_mb:64,")
	want := map[string]string{"roundup_power2_divisions": "[256:1,512:2,>:4]", "backend": "native", "max_split_size_mb": "64"}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for _, odd := range []string{"", "[", "]]:a,b:c", ":", ",,"} {
		if all := allocatorSettings(odd); len(all) > 1 {
			t.Errorf("%q: %v", odd, all)
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
		warned(t, fmt.Sprint(c.free, c.each), room("out", c.free, c.each), c.want...)
	}
}
