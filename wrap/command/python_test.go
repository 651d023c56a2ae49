package command

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPython checks which script and which interpreter are found in a command.
func TestPython(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"torchrun":   "#!/opt/env/bin/python3.11\nimport sys\n",
		"accelerate": "#!/usr/bin/env python3\n",
		"python3":    "#!/bin/sh\n",
		"deepspeed":  "\x7fELF",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ command, interpreter, words, why string }{
		{"python train.py --lr 3", "python", "train.py", ""},
		{"/opt/bin/python3.9 -u -m pkg.train", "/opt/bin/python3.9", "-m pkg.train", ""},
		{"env A=1 nice -n 5 python train.py", "python", "train.py", ""},
		{"torchrun --nproc_per_node 2 train.py", "/opt/env/bin/python3.11", "train.py", ""},
		{"accelerate launch --num_processes 2 -m pkg.train", "python3", "-m pkg.train", ""},
		{"python -m torch.distributed.run --nproc_per_node 2 train.py", "python", "train.py", ""},
		{"deepspeed --num_gpus 2 train.py", "python3", "train.py", ""},
		{"./train.py", "python3", "./train.py", ""},
		{"env -C elsewhere python train.py", "", "", "the command is started in another folder"},
		{"bash train.sh", "", "", "cannot see the training command inside bash"},
		{"./a.out", "", "", "./a.out is not a Python script"},
		{"python -c pass", "", "", "cannot see the training command inside python -c"},
	} {
		got, err := Line{Args: strings.Fields(c.command), Env: []string{"PATH=" + dir}, Dir: dir}.Python()
		why := ""
		if err != nil {
			why = err.Error()
		}
		if got.Interpreter != c.interpreter || strings.Join(got.Words, " ") != c.words || !strings.HasPrefix(why, c.why) || (why == "") != (c.why == "") {
			t.Errorf("%s: %+v, %s", c.command, got, why)
		}
	}
}
