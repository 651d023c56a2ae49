package job

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"headroom/machine"
	"headroom/memory"
	"headroom/nvml"
	"headroom/runs"
	"headroom/wrap"
	"headroom/wrap/command"
)

// FindMicro finds how many rows of its batch a command's training step is to be run on at once: in a trial, as [FindRows]
// does, of the command line tried, which may differ from line in where it writes. Where earlier runs in the folders dirs have found
// that for the same command, device and versions, no trial is made, and dir is the folder of that run. If nothing was found, found
// is nil and why says why. begins is called before a trial. The error is as for [FindRows]. o.Within is not used.
func FindMicro(ctx context.Context, to wrap.Reporter, line, tried command.Line, dirs []string, begins func(), o FindRowsOptions) (found *runs.Found, dir, why string, err error) {
	all, _ := nvml.GPUs() // without NVML there is no GPU to ask
	gpus := line.GPUs(all)
	key, free := microKey(line, gpus, torchOf(ctx, line), o.Version), leastFree(gpus)
	if found, dir := runs.FindFound(dirs, key, free); found != nil {
		return found, dir, "", nil
	}
	begins()
	began := time.Now()
	o.Within = nil
	rows, why, _, err := FindRows(ctx, to, tried, o)
	if rows == nil || err != nil {
		return nil, "", why, err
	}
	found = &runs.Found{Key: key, Rows: rows.Rows, Largest: rows.Largest, Free: free, Seconds: time.Since(began).Seconds(), Time: time.Now()}
	found.Micro, found.Why = rows.piece(o.Headroom), rows.Uncut
	return found, "", "", nil
}

// piece returns how many rows of the command's batch are to be run at once: 0, which is all of them, if they fit or must not be cut.
// Otherwise pieces are nearly equal, and leave a share of the memory unused.
func (f *FoundRows) piece(headroom float64) int {
	if f.Rows <= f.Largest || f.Uncut != "" {
		return 0
	}
	// The batch stays whole while its pieces are run, and from the second piece on there are gradients, which the first
	// pass of a trial has not. So pieces are smaller than the batch that fits.
	pieces := *f
	pieces.Line.Base += float64(f.Together)
	pieces.Line.PerSample -= float64(f.Together) / float64(f.Rows)
	if f.Rows*max(1, f.World) == f.Effective { // of each rank
		pieces.Line.Base += float64(f.Gradients)
	}
	most := pieces.leaving(f.Largest, headroom, f.Available)
	count := (f.Rows + most - 1) / most
	return (f.Rows + count - 1) / count
}

// leastFree returns the free memory of the GPU that has least of it, or 0 if there is no GPU.
func leastFree(gpus []nvml.GPU) memory.Bytes {
	if len(gpus) == 0 {
		return 0
	}
	return slices.MinFunc(gpus, func(a, b nvml.GPU) int { return int((a.Free - b.Free) >> 10) }).Free
}

// keyedFile is the largest file of a command whose content is a part of the key.
const keyedFile = 1 << 20

// microKey returns what tells apart what is found for a command: its words, the content of the files among them, the
// variables that decide about memory, the devices, and the versions.
func microKey(line command.Line, gpus []nvml.GPU, torch, version string) string {
	var of struct {
		Args, Env, Devices []string
		Files              map[string]string
		Dir                string
		Host               memory.Bytes
		Torch, Version     string
	}
	of.Args, of.Dir, of.Torch, of.Version, of.Files = line.Args, line.Dir, torch, version, map[string]string{}
	for _, word := range line.Args {
		path := line.From(word)
		if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() || info.Size() > keyedFile {
			continue
		}
		if text, err := os.ReadFile(path); err == nil {
			sum := sha256.Sum256(text)
			of.Files[word] = hex.EncodeToString(sum[:])
		}
	}
	for _, entry := range line.Env {
		if strings.HasPrefix(entry, "PYTORCH_") || strings.HasPrefix(entry, "CUDA_") {
			of.Env = append(of.Env, entry)
		}
	}
	for _, g := range gpus {
		of.Devices = append(of.Devices, g.Name+" "+g.Total.String())
	}
	if len(gpus) == 0 {
		of.Host = machine.LookAtMemory().Most()
	}
	slices.Sort(of.Env)
	text, _ := json.Marshal(of) // strings and numbers
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// askingTorch is how long a Python interpreter may take to say which PyTorch it has.
const askingTorch = 20 * time.Second

// torchOf returns the version of PyTorch that a command's Python has, or "" if that is not known. It imports no PyTorch.
func torchOf(ctx context.Context, line command.Line) string {
	python, err := line.Python()
	if err != nil {
		return ""
	}
	program, err := command.Line{Args: []string{python.Interpreter}, Env: line.Env, Dir: line.Dir}.Program()
	if err != nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, askingTorch)
	defer cancel()
	c := exec.CommandContext(ctx, line.From(program), "-B", "-c", "import importlib.metadata as m; print(m.version('torch'))")
	c.Env, c.Dir, c.WaitDelay = line.Environment(), line.Dir, time.Second
	out, err := c.Output()
	if failed := (*exec.ExitError)(nil); err != nil && !errors.As(err, &failed) {
		return ""
	}
	return strings.TrimSpace(string(out))
}
