package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// Finding is something that a training script was seen to do, without being executed, that takes more memory
// than it needs or trains something else than it seems to.
type Finding struct {
	Rule    string `json:"rule"`
	File    string `json:"file"` // absolute, or relative to the folder in which the command runs
	Line    int    `json:"line"`
	Name    string `json:"name,omitempty"` // the variable that keeps tensors, as the script writes it; "" if the rule is about none
	Why     string `json:"why"`            // what happens there
	Instead string `json:"instead"`        // what to write
}

// Script is a Python program to be read.
type Script struct {
	Interpreter string   // a program: a path, or a name that is looked up in PATH
	Words       []string // the script, or -m and a module
	Env         []string // of the command
	Dir         string   // in which the command runs
}

// readingMost is how long it may take to read a script. Most take less than a second.
var readingMost = 20 * time.Second

// module runs a module of the package, which is in the folder that the first argument names. With -I, nothing
// of the user's is in the path.
const module = `import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); runpy.run_module("headroom_train.reading", run_name="__main__", alter_sys=True)`

// Read reads a script, and the local modules that it imports, with its own interpreter. Nothing of them is executed. The error says why
// the script could not be read.
func Read(ctx context.Context, s Script, version string) (found []Finding, err error) {
	folder, err := makeFolder("", version)
	if err != nil {
		return nil, fmt.Errorf("unpack the package: %w", err)
	}
	defer func() { err = errors.Join(err, folder.remove()) }()
	ctx, cancel := context.WithTimeout(ctx, readingMost)
	defer cancel()
	c := exec.CommandContext(ctx, s.Interpreter, append([]string{"-I", "-S", "-B", "-c", module, folder.inject()}, s.Words...)...)
	c.Env, c.Dir, c.WaitDelay = s.Env, s.Dir, time.Second
	var said bytes.Buffer
	c.Stderr = &said
	out, err := c.Output()
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return nil, fmt.Errorf("%s did not read the script within %v", s.Interpreter, readingMost)
	case err != nil:
		lines := strings.Split(strings.TrimSpace(said.String()), "\n")
		return nil, fmt.Errorf("%s cannot read the script: %w: %s", s.Interpreter, err, lines[len(lines)-1])
	}
	var answer struct {
		Why      string    `json:"why"`
		Findings []Finding `json:"findings"`
	}
	if err := json.Unmarshal(out, &answer); err != nil {
		return nil, fmt.Errorf("%s cannot read the script: %w", s.Interpreter, err)
	}
	if answer.Why != "" {
		return nil, errors.New(answer.Why)
	}
	return answer.Findings, nil
}
