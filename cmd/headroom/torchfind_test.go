package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestTorchFindsMicroBatch finds the micro-batch of a real Transformers training run, in
// so little memory that PyTorch's own allocator fails. A trial must have run with the
// micro-batch that is found, and no file of the training run may be touched.
func TestTorchFindsMicroBatch(t *testing.T) {
	python, dir := pythonWithTorch(t), scripts(t)
	t.Chdir(t.TempDir())
	t.Setenv("TMPDIR", t.TempDir())
	earlier := filepath.Join("out", "checkpoint-7", "trainer_state.json")
	if err := os.MkdirAll(filepath.Dir(earlier), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(earlier, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	command := []string{python, filepath.Join(dir, "hf.py"), "--output_dir", "out", "--max_steps", "4000", "--save_steps", "1", "--use_cpu", "--disable_tqdm", "true",
		"--dataloader_pin_memory", "false", "--resume_from_checkpoint", "out/checkpoint-7", "--per_device_train_batch_size", "381"}
	c := limited(1_250_000, append([]string{"headroom", "find", "--starts", "--json", "--"}, command...)...)
	var said strings.Builder
	c.Stderr = &said
	out, err := c.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, said.String())
	}
	var f foundMicro
	if err := json.Unmarshal(out, &f); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var tried []string
	for _, one := range f.Trials {
		tried = append(tried, one.Text)
	}
	// The possible sizes are 1, 3, 127 and 381, which divide the 381 samples of a step.
	if len(tried) != 2 || !strings.HasPrefix(tried[0], "micro-batch 381 does not fit: it needs ") || !strings.HasSuffix(tried[0], " more than is available") || tried[1] != "micro-batch 127 fits" {
		t.Errorf("trials: %q", tried)
	}
	if f.Largest.Micro != 127 || f.Largest.Steps != 3 || f.Largest.PerSecond <= 0 || f.Recommended.Micro != 127 || f.Recommended.Effective != 381 {
		t.Errorf("found %+v, recommended %v", f.Largest, f.Recommended)
	}
	want := append(slices.Clone(command[:len(command)-1]), "127", "--gradient_accumulation_steps", "3")
	if !slices.Equal(f.Command, want) {
		t.Errorf("the command to start is %q, want %q", f.Command, want)
	}
	for folder, want := range map[string]int{"out": 1, "out/checkpoint-7": 1, ".": 1} {
		if entries, err := os.ReadDir(folder); err != nil || len(entries) != want {
			t.Errorf("%s has %v, %v", folder, entries, err)
		}
	}
	if left, err := filepath.Glob(filepath.Join(os.Getenv("TMPDIR"), "headroom-*")); err != nil || len(left) > 0 {
		t.Errorf("%v is left, %v", left, err)
	}
}
