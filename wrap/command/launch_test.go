package command

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestPeel(t *testing.T) {
	for _, c := range []struct{ command, want string }{
		{"python train.py", "[] train.py ranks 1"},
		{"python3.11 -u -X dev -m pkg.train --a", "[] pkg.train ranks 1"},
		{"CUDA_VISIBLE_DEVICES=0,1, A=b env -u X C=d nohup nice -n 5 python train.py", "[env nohup nice] train.py ranks 1 devices 2"},
		{"uv run --with torch==2.1 --extra cu --no-sync -- python train.py", "[uv run] train.py ranks 1"},
		{"uv run -m pkg.train", "[uv run] pkg.train ranks 1"},
		{"conda run -n env --no-capture-output python train.py", "[conda run] train.py ranks 1"},
		{"torchrun --standalone --nproc-per-node 4 -- train.py -- x", "[torchrun] train.py ranks 4"},
		{"torchrun --nnodes=2:2 --nproc_per_node=8 --rdzv-backend c10d -m pkg", "[torchrun] pkg ranks 16"},
		{"torchrun --nnodes 1:4 --nproc_per_node=8 t.py", "[torchrun] t.py ranks ? --nnodes 1:4 does not give a fixed number of processes"},
		{"torchrun --nproc-per-node=gpu t.py", "[torchrun] t.py ranks ? --nproc_per_node gpu does not give a fixed number of processes"},
		{"CUDA_VISIBLE_DEVICES=2,3 python -m torch.distributed.run --nproc-per-node=auto t.py", "[torchrun] t.py ranks 2"},
		{"torchrun t.py", "[torchrun] t.py ranks 1"},
		{"PET_NNODES=2 PET_NPROC_PER_NODE=8 torchrun t.py", "[torchrun] t.py ranks 16"},
		{"PET_NNODES=2 PET_NPROC_PER_NODE=8 torchrun --nnodes 1 t.py", "[torchrun] t.py ranks 8"},
		{"PET_NPROC_PER_NODE=auto torchrun t.py", "[torchrun] t.py ranks ? PET_NPROC_PER_NODE auto does not give a fixed number of processes"},
		{"PET_NNODES=2 python t.py", "[] t.py ranks 1"},
		{"torchrun --no-python --nproc-per-node=2 ./prog x", "[torchrun] prog ranks 2"},
		{"srun -n8 --gpus-per-task=1 -p gpu python t.py", "[srun] t.py ranks 8"},
		{"srun -N 2 --ntasks-per-node=1 torchrun --nnodes 2 --nproc-per-node 4 t.py", "[srun torchrun] t.py ranks 8"},
		{"PET_NNODES=2 PET_NPROC_PER_NODE=4 torchrun --nnodes 3 t.py", "[torchrun] t.py ranks 12"},
		{"SLURM_NTASKS=16 srun python t.py", "[srun] t.py ranks 16"},
		{"SLURM_NTASKS=16 srun -n 8 python t.py", "[srun] t.py ranks 8"},
		{"SLURM_NTASKS=16 python t.py", "[] t.py ranks 1"},
		{"torchrun --signals-to-handle SIGTERM,SIGUSR1 t.py", "[torchrun] t.py ranks 1"},
		{"srun python t.py", "[srun] t.py ranks ? --ntasks is not given: the allocation decides"},
		{"mpirun -np 4 --mca btl tcp -x PATH python t.py", "[mpirun] t.py ranks 4"},
		{"accelerate launch --num_processes=4 --mixed_precision bf16 t.py", "[accelerate launch] t.py ranks 4"},
		{"python -m accelerate launch t.py", "[accelerate launch] t.py ranks ? --num_processes is not given: accelerate takes it from its own configuration"},
		{"python -m accelerate.commands.launch --num_processes 2 t.py", "[accelerate launch] t.py ranks 2"},
		{"deepspeed --include localhost:0,1@other:2 t.py", "[deepspeed] t.py ranks 3"},
		{"deepspeed --num_gpus 4 --num_nodes 2 t.py", "[deepspeed] t.py ranks 8"},
		{"deepspeed --num_gpus 4 --hostfile h t.py", "[deepspeed] t.py ranks ? --hostfile names the machines"},
		{"composer -n 8 t.py x.yaml", "[composer] t.py ranks 8"},
		{"WORLD_SIZE=4 python t.py", "[] t.py ranks 4"},
		{"bash t.sh", "bash: shell scripts"},
		{"./t.sh", "./t.sh: shell scripts"},
		{"sbatch job.sh", "sbatch: it submits the job and exits"},
		{"docker run x python t.py", "docker: a container"},
		{"nohup bash -c 'python t.py'", "bash: shell scripts"},
		{"python -", "here-document"},
		{"python -c pass", "the script is passed as an argument"},
		{"python", "standard input"},
		{"torchrun --frobnicate 3 t.py", "option --frobnicate is not known"},
		{"torchrun --nproc-per-node", "has no value"},
		{"env A=b", "names no program"},
	} {
		l, err := Peel(Line{Args: strings.Fields(c.command), Dir: "/"})
		got := fmt.Sprintf("%v %s ranks %d", l.Layers, l.Name(), l.Ranks)
		if l.Ranks == 0 {
			got = fmt.Sprintf("%v %s ranks ? %s", l.Layers, l.Name(), l.Why)
		}
		if l.Devices > 1 {
			got += fmt.Sprintf(" devices %d", l.Devices)
		}
		if err != nil {
			got = err.Error()
			var opaque *OpaqueError
			if !errors.As(err, &opaque) || !strings.Contains(got, c.want) {
				t.Errorf("%s: %s, want %s", c.command, got, c.want)
			}
			continue
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.command, got, c.want)
		}
	}
}

// FuzzPeel checks that no command makes Peel panic, and that a Launch gives the right
// position of the program that it names.
func FuzzPeel(f *testing.F) {
	f.Add("env A=b torchrun --nproc-per-node=2 -- train.py --x")
	f.Add("python -m torch.distributed.run -m")
	f.Add("deepspeed --include localhost:0,1 --module m")
	f.Add("srun -n")
	f.Fuzz(func(t *testing.T, line string) {
		c := Line{Args: strings.Fields(line), Dir: "/"}
		l, err := Peel(c)
		if err != nil {
			return
		}
		if l.First != l.At+1 || l.First > len(c.Args) || c.Args[l.At] != l.Script+l.Module+l.Program {
			t.Fatalf("%q: %+v", c.Args, l)
		}
	})
}

func TestIsolated(t *testing.T) {
	for line, want := range map[string]string{
		"python train.py":                  "",
		"python -u train.py -I":            "",
		"python -I train.py":               "-I",
		"python3.11 -uE train.py":          "-uE",
		"/usr/bin/python3 -S -m pkg":       "-S",
		"python -W ignore -E x.py":         "-E",
		"python -WIgnore x.py":             "",
		"python -X importtime=S x.py":      "",
		"python -m torch.distributed -I":   "",
		"env -i python -s -P -OO x.py":     "",
		"torchrun --nproc-per-node 2 x.py": "",
		"sh -c python":                     "",
	} {
		if got := (Line{Args: strings.Fields(line)}).Isolated(); got != want {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
}
