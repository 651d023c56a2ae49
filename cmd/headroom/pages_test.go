package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"go.yaml.in/yaml/v3"
)

// fenced returns the blocks of a page that stand between lines of three backticks.
func fenced(t *testing.T, page string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", page))
	if err != nil {
		t.Fatal(err)
	}
	var blocks []string
	for i, part := range strings.Split(string(text), "\n```") {
		if _, block, _ := strings.Cut(part, "\n"); i%2 == 1 {
			blocks = append(blocks, block+"\n")
		}
	}
	return blocks
}

// blockWith returns the only block of a page that contains the given text.
func blockWith(t *testing.T, page, text string) string {
	t.Helper()
	found := ""
	for _, block := range fenced(t, page) {
		if strings.Contains(block, text) {
			if found != "" {
				t.Fatalf("%s has several blocks with %q", page, text)
			}
			found = block
		}
	}
	if found == "" {
		t.Fatalf("%s has no block with %q", page, text)
	}
	return found
}

// put writes files, all executable, into the working directory.
func put(t *testing.T, files map[string]string) {
	t.Helper()
	for name, text := range files {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// TestNightGoesOn checks that the script of docs/night.md gives the command the newest
// complete checkpoint to continue from, or none if there is none.
func TestNightGoesOn(t *testing.T) {
	script := blockWith(t, "docs/night.md", "# night.sh")
	t.Chdir(t.TempDir())
	put(t, map[string]string{"night.sh": script, "headroom": "#!/bin/sh\nprintf '%s|' \"$@\"\n"})
	begins := func(want string) {
		t.Helper()
		command := exec.Command("./night.sh")
		command.Env = append(os.Environ(), "PATH=.:"+os.Getenv("PATH"))
		out, err := command.Output()
		words := strings.Split(string(out), "|")
		at := slices.Index(words, "--resume_from_checkpoint")
		if err != nil || words[0] != "run" || words[1] != "--" || (at >= 0) != (want != "") || at >= 0 && words[at+1] != want {
			t.Errorf("%q, %v; want it to continue from %q", words, err, want)
		}
	}
	begins("")
	put(t, map[string]string{
		"out/checkpoint-9/trainer_state.json": "{}", "out/checkpoint-12/trainer_state.json": "{}",
		"out/checkpoint-15/model.safetensors": "half", "out/.headroom-checkpoint-20/trainer_state.json": "{}",
	})
	begins("out/checkpoint-12")
}

// TestSlurmScripts runs the batch scripts of docs/night.md with a stub for headroom that
// ends in every possible way. The job may be queued again only if its time is up.
func TestSlurmScripts(t *testing.T) {
	one, nodes := blockWith(t, "docs/night.md", "\n./night.sh &"), blockWith(t, "docs/night.md", "--nodes=2")
	const asked = syscall.Signal(0)
	for _, c := range []struct {
		name, script string
		signal       syscall.Signal // sent to the script; if 0, headroom ends by itself
		end          string         // status of headroom
		again        bool
	}{
		{"its time is up, and it saves", one, syscall.SIGUSR1, "75", true},
		{"its time is up, and torchrun ends", one, syscall.SIGUSR1, "1", true},
		{"its time is up, and it is done", one, syscall.SIGUSR1, "0", false},
		{"it is cancelled, and saves", one, syscall.SIGTERM, "75", false},
		{"it is done", one, asked, "0", false},
		{"it fails", one, asked, "1", false},
		{"the time of all nodes is up", nodes, syscall.SIGUSR1, "0", true},
		{"all nodes are done", nodes, asked, "0", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			waits := "echo $$ >pid\necho ready\nwhile :; do sleep 0.05; done\n"
			if c.signal == asked {
				waits = "exit " + c.end + "\n"
			}
			put(t, map[string]string{
				"job": c.script, "night.sh": "#!/bin/sh\nexec headroom\n",
				"headroom": "#!/bin/sh\ntrap 'exit " + c.end + "' TERM\n" + waits,
				"scontrol": "#!/bin/sh\necho \"$@\" >>scontrol.said\n",
				"scancel":  "#!/bin/sh\n[ \"$*\" = '--signal=TERM 17' ] && kill -TERM $(cat pid)\n",
			})
			command := exec.Command("bash", "job")
			command.Env = append(os.Environ(), "PATH=.:"+os.Getenv("PATH"), "SLURM_JOB_ID=17", "SLURM_JOB_NODELIST=n[1-2]")
			p := begin(t, command)
			if c.signal != asked {
				if !p.lines.Scan() || p.lines.Text() != "ready" {
					t.Fatalf("it said %q\n%s", p.lines.Text(), p.stderr.String())
				}
				p.signal(c.signal)
			}
			for p.lines.Scan() {
				t.Log(p.lines.Text())
			}
			err := p.cmd.Wait()
			said, _ := os.ReadFile("scontrol.said") // it need not exist
			if again := strings.Contains(string(said), "requeue 17"); again != c.again {
				t.Errorf("queued again: %v, want %v; %v\n%s", again, c.again, err, p.stderr.String())
			}
		})
	}
}

// TestJobGivesUp checks the exit statuses after which the Kubernetes Job of
// docs/night.md gives up. None of them may be the status of a command that was killed or
// was asked to end.
func TestJobGivesUp(t *testing.T) {
	var job struct {
		Spec struct {
			PodFailurePolicy struct {
				Rules []struct {
					Action      string
					OnExitCodes struct{ Values []int } `yaml:"onExitCodes"`
				}
			} `yaml:"podFailurePolicy"`
			Template struct {
				Spec struct {
					RestartPolicy string `yaml:"restartPolicy"`
					Containers    []struct{ Command []string }
				}
			}
		}
	}
	if err := yaml.Unmarshal([]byte(blockWith(t, "docs/night.md", "kind: Job")), &job); err != nil {
		t.Fatal(err)
	}
	pod := job.Spec.Template.Spec
	if pod.RestartPolicy != "Never" || len(pod.Containers) != 1 || !slices.Equal(pod.Containers[0].Command, []string{"./night.sh"}) {
		t.Errorf("%+v", pod)
	}
	var ends []int
	for _, rule := range job.Spec.PodFailurePolicy.Rules {
		if rule.Action == "FailJob" {
			ends = rule.OnExitCodes.Values
		}
	}
	for status, stays := range map[int]bool{1: true, 2: true, 126: true, 127: true, 75: false, 134: false, 137: false, 143: false} {
		if slices.Contains(ends, status) != stays {
			t.Errorf("status %d ends the job: %v, want %v", status, !stays, stays)
		}
	}
}

const dryRun = "$ headroom run --dry-run "

// showsWhatItPrints runs the command that a block begins with, which may span several lines,
// and compares the rest of the block with the command's output.
func showsWhatItPrints(t *testing.T, block string) {
	t.Helper()
	line, want, _ := strings.Cut(strings.ReplaceAll(block, "\\\n", ""), "\n")
	if out, err := exec.Command("sh", "-c", strings.TrimPrefix(line, "$ ")).Output(); err != nil || string(out) != want {
		t.Errorf("%v; the page shows\n%sand it is\n%s", err, want, out)
	}
}

// TestReadmeShowsADryRun checks that the dry run of examples/train.py prints what the README
// shows.
func TestReadmeShowsADryRun(t *testing.T) {
	shown := blockWith(t, "README.md", dryRun)
	script, err := os.ReadFile(filepath.Join("..", "..", "examples", "train.py"))
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	put(t, map[string]string{"examples/train.py": string(script)})
	showsWhatItPrints(t, shown)
}

// megatronish is a script of the kind that the profile in docs/profiles.md is written
// for: the accumulation follows from a global batch, and the script continues by itself
// from the checkpoint that a pointer file names.
const megatronish = `import argparse, os, sys
p = argparse.ArgumentParser()
p.add_argument("--micro-batch-size", type=int); p.add_argument("--global-batch-size", type=int)
p.add_argument("--save"); p.add_argument("--load")
a = p.parse_args()
pointer = os.path.join(a.load or "", "latest_checkpointed_iteration.txt")
step = int(open(pointer).read()) if os.path.exists(pointer) else 0
while step < 6:
    if step == 5 and a.micro_batch_size > 4:
        sys.exit("Traceback (most recent call last):\n  File \"pretrain_gpt.py\", line 9, in forward\n"
                 "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.25 GiB of which 1.10 GiB is free. "
                 "Process 71 has 78.14 GiB memory in use. Of the allocated memory 77.50 GiB is allocated by PyTorch, and 100.00 MiB is reserved by PyTorch but unallocated.")
    step += 1
    print(step, a.micro_batch_size, (a.global_batch_size or a.micro_batch_size) // a.micro_batch_size, flush=True)
    if step % 2 == 0:
        os.makedirs(os.path.join(a.save, f"iter_{step:07d}"))
        open(os.path.join(a.save, f"iter_{step:07d}", "model.bin"), "w").write("weights")
        open(os.path.join(a.save, "latest_checkpointed_iteration.txt"), "w").write(f"{step:07d}")
`

// TestProfileInTenLines checks the profile of docs/profiles.md, which may have at most
// ten lines, with a script that no built-in profile recognises. With the profile in the
// user's own folder, a dry run must print what the page shows, and a run must reach its
// end although the script runs out of memory.
func TestProfileInTenLines(t *testing.T) {
	profile, shown := blockWith(t, "docs/profiles.md", "name: mygpt"), blockWith(t, "docs/profiles.md", dryRun)
	if lines := strings.Count(profile, "\n"); lines > 10 {
		t.Errorf("%d lines", lines)
	}
	t.Chdir(t.TempDir())
	put(t, map[string]string{"config/headroom/profiles/mygpt.yaml": profile, "pretrain_gpt.py": megatronish})
	config, err := filepath.Abs("config")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("XDG_CONFIG_HOME", config)
	showsWhatItPrints(t, shown)
	command := exec.Command("headroom", "run", "--", "python3", "pretrain_gpt.py", "--micro-batch-size", "16", "--save", "out")
	var stderr strings.Builder
	command.Stderr = &stderr
	out, err := command.Output()
	const want = "1 16 1\n2 16 1\n3 16 1\n4 16 1\n5 16 1\n" + "5 8 2\n" + "5 4 4\n6 4 4\n"
	if err != nil || string(out) != want {
		t.Errorf("%v; step, micro-batch and accumulation were\n%swant\n%s\n%s", err, out, want, stderr.String())
	}
}
