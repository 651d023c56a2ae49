package job

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"headroom/memory"
	"headroom/nvml"
	"headroom/search"
	"headroom/wrap/command"
)

// TestPiece checks how many rows are run at once: a step in pieces of so many rows needs no more than there is, with the
// whole batch, what the script holds of its results, and the gradients of the pieces before beside it.
func TestPiece(t *testing.T) {
	for name, c := range map[string]struct {
		found FoundRows
		want  int
	}{
		"the batch fits":           {FoundRows{Rows: 64, Effective: 64, Largest: 64}, 0},
		"it must not be cut":       {FoundRows{Rows: 64, Effective: 64, Largest: 40, Uncut: "rows are compared"}, 0},
		"pieces are nearly equal":  {FoundRows{Rows: 100, Effective: 100, Largest: 90, Available: 10000, Line: search.Line{Base: 1000, PerSample: 100}}, 50},
		"headroom is left":         {FoundRows{Rows: 180, Effective: 180, Largest: 90, Available: 10000, Line: search.Line{Base: 1000, PerSample: 100}}, 60}, // 82 leave 8 %
		"gradients are there":      {FoundRows{Rows: 160, Effective: 160, Largest: 90, Available: 10000, Gradients: 1000, Line: search.Line{Base: 1000, PerSample: 100}}, 54},
		"gradients of each rank":   {FoundRows{Rows: 160, Effective: 320, World: 2, Largest: 90, Available: 10000, Gradients: 1000, Line: search.Line{Base: 1000, PerSample: 100}}, 54},
		"they were there before":   {FoundRows{Rows: 160, Effective: 320, Largest: 90, Available: 10000, Gradients: 1000, Line: search.Line{Base: 1000, PerSample: 100}}, 80},
		"the batch stays together": {FoundRows{Rows: 100, Effective: 200, Largest: 90, Available: 10000, Together: 4000, Line: search.Line{Base: 1000, PerSample: 100}}, 50},
		"a large batch stays":      {FoundRows{Rows: 300, Effective: 600, Largest: 90, Available: 10000, Together: 6000, Line: search.Line{Base: 1000, PerSample: 100}}, 25},
		"there is no line":         {FoundRows{Rows: 9, Effective: 9, Largest: 4}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			f := c.found
			n := f.piece(0.08)
			if n != c.want {
				t.Errorf("%d, want %d", n, c.want)
			}
			if n == 0 || f.Line.PerSample == 0 {
				return
			}
			need := f.Line.At(n) + float64(f.Together)*float64(f.Rows-n)/float64(f.Rows)
			if f.Rows*max(1, f.World) == f.Effective {
				need += float64(f.Gradients)
			}
			if need > 0.92*float64(f.Available) {
				t.Errorf("pieces of %d rows need %.0f of %d", n, need, f.Available)
			}
		})
	}
}

// TestMicroKey checks what makes an earlier answer count no longer.
func TestMicroKey(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "train.py")
	write := func(text string) {
		if err := os.WriteFile(script, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("import torch\n")
	line := command.Line{Args: []string{"python", "train.py", "--batch", "64"}, Dir: dir, Env: []string{"HOME=/home/a", "PYTORCH_ALLOC_CONF=a", "CUDA_VISIBLE_DEVICES=0"}}
	gpus := []nvml.GPU{{Name: "A", Total: 40 * memory.GiB, Free: memory.GiB}}
	first := microKey(line, gpus, "2.11", "1")
	same := line
	same.Env = []string{"CUDA_VISIBLE_DEVICES=0", "PYTORCH_ALLOC_CONF=a", "HOME=/home/b"}
	busy := []nvml.GPU{{Name: "A", Total: 40 * memory.GiB, Free: 2 * memory.GiB}}
	if microKey(line, gpus, "2.11", "1") != first || microKey(same, busy, "2.11", "1") != first {
		t.Error("the key differs where nothing has changed")
	}
	args, env, moved := line, line, line
	args.Args = append(slices.Clone(line.Args[:3]), "32")
	env.Env = []string{"PYTORCH_ALLOC_CONF=a", "CUDA_VISIBLE_DEVICES=1"}
	moved.Dir = t.TempDir()
	keys := []string{first, microKey(args, gpus, "2.11", "1"), microKey(env, gpus, "2.11", "1"), microKey(moved, gpus, "2.11", "1"), microKey(line, nil, "2.11", "1"),
		microKey(line, []nvml.GPU{{Name: "B", Total: 40 * memory.GiB}}, "2.11", "1"), microKey(line, gpus, "2.12", "1"), microKey(line, gpus, "2.11", "2")}
	write("import torch, os\n")
	keys = append(keys, microKey(line, gpus, "2.11", "1"))
	slices.Sort(keys)
	if distinct := len(slices.Compact(keys)); distinct != 9 {
		t.Errorf("%d of 9 keys differ", distinct)
	}
}

// TestTorchOf checks that a command without Python has no PyTorch.
func TestTorchOf(t *testing.T) {
	if v := torchOf(context.Background(), command.Line{Args: []string{"sh", "-c", "true"}, Env: os.Environ()}); v != "" {
		t.Error(v)
	}
}
