package main

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// These exit statuses of the toy occur only if headroom or the test has a defect.
const (
	toyOtherBatch = 66 // the effective batch is not 32
	toyOtherState = 67 // the checkpoint to continue from is not what was written
	toyCannot     = 68 // the toy could not do what its flags ask for
)

// toyScript says what the toy does, and what it does wrong.
type toyScript struct {
	micro, accumulation int
	resume              string
	steps               int    // steps to make, with a checkpoint after every second one
	fits                int    // the largest micro-batch for which step 3 has enough memory
	says                bool   // it prints an out-of-memory message in its first step, and continues
	half                bool   // it leaves a half-written checkpoint behind when it ends
	deaf                bool   // it ignores SIGTERM
	leaves              string // the descendants that it leaves behind, separated by commas
	breaks              string // what it removes from the folder of its run before memory runs out
	waits               bool   // at its end it waits for a signal
	code                int
}

// toy imitates a training script in everything that matters here: it runs steps, saves
// checkpoints, continues from them and ends. It trains nothing.
func toy() {
	var s toyScript
	flag.IntVar(&s.micro, "bs", 0, "")
	flag.IntVar(&s.accumulation, "acc", 0, "")
	flag.StringVar(&s.resume, "resume", "", "")
	flag.IntVar(&s.steps, "steps", 6, "")
	flag.IntVar(&s.fits, "fits", 1<<20, "")
	flag.BoolVar(&s.says, "says", false, "")
	flag.BoolVar(&s.half, "half", false, "")
	flag.BoolVar(&s.deaf, "deaf", false, "")
	flag.StringVar(&s.leaves, "leaves", "", "")
	flag.StringVar(&s.breaks, "breaks", "", "")
	flag.BoolVar(&s.waits, "waits", false, "")
	flag.IntVar(&s.code, "code", 0, "")
	hold := flag.String("hold", "", "")
	flag.Parse()
	if *hold != "" {
		toyHolds(*hold)
	}
	os.Exit(s.train())
}

func (s toyScript) train() int {
	if s.deaf {
		signal.Ignore(syscall.SIGTERM)
	}
	fmt.Printf("run %s pid %d\n", os.Getenv("HEADROOM_RUN"), os.Getpid())
	if s.micro*s.accumulation != 32 {
		return toyOtherBatch
	}
	first := 1
	if s.resume != "" {
		var saved int
		text, _ := os.ReadFile(s.resume)
		if n, _ := fmt.Sscanf(filepath.Base(s.resume), "step-%d.json", &saved); n != 1 || string(text) != toyState(saved) {
			return toyOtherState
		}
		first = saved + 1
	}
	for _, kind := range strings.FieldsFunc(s.leaves, func(c rune) bool { return c == ',' }) {
		if err := toyLeaves(kind); err != nil {
			return toyCannot
		}
		fmt.Println("left", kind)
	}
	for step := first; step <= s.steps; step++ {
		if step == 3 && s.micro > s.fits {
			return s.ranOut()
		}
		fmt.Println(toyStep(step))
		if s.says && step == first {
			fmt.Fprint(os.Stderr, toyRanOut)
		}
		if step%2 == 0 {
			if err := toySaves(step); err != nil {
				return toyCannot
			}
			fmt.Println("saved", step)
		}
	}
	if s.half && toyHalf(s.steps) != nil {
		return toyCannot
	}
	fmt.Println("end")
	for s.waits {
		time.Sleep(time.Minute)
	}
	return s.code
}

// ranOut does what the toy does when memory runs out, and returns its exit status.
func (s toyScript) ranOut() int {
	if s.breaks != "" && os.RemoveAll(filepath.Join("runs", os.Getenv("HEADROOM_RUN"), s.breaks)) != nil || s.half && toyHalf(2) != nil {
		return toyCannot
	}
	fmt.Fprint(os.Stderr, toyRanOut)
	return 5
}

const toyRanOut = `Traceback (most recent call last):
  File "train.py", line 12, in <module>
    loss = model(x)
  File "/usr/lib/python3/site-packages/torch/nn/modules/module.py", line 1773, in _wrapped_call_impl
    return self._call_impl(*args, **kwargs)
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.25 GiB of which 1.10 GiB is free. Process 71 has 78.14 GiB memory in use. Of the allocated memory 77.50 GiB is allocated by PyTorch, and 100.00 MiB is reserved by PyTorch but unallocated.
`

// toyState returns the whole content of the checkpoint after a step. It does not depend on the
// micro-batch.
func toyState(step int) string {
	return fmt.Sprintf("{\"step\": %d, \"weights\": \"%x\"}\n", step, sha256.Sum256([]byte{byte(step)}))
}

func toyCheckpoint(step int) string { return filepath.Join("out", fmt.Sprintf("step-%d.json", step)) }

func toyStep(step int) string { return fmt.Sprintf("step %d: loss 2.%d", step, step) }

// toySaves writes the checkpoint after a step, completely or not at all. Two toys may write the
// same checkpoint.
func toySaves(step int) error {
	beside := fmt.Sprintf("out/.%d.%d", step, os.Getpid())
	if err := os.WriteFile(beside, []byte(toyState(step)), 0o644); err != nil {
		return err
	}
	return os.Rename(beside, toyCheckpoint(step))
}

// toyHalf writes the first half of the next checkpoint after the one of the given step.
func toyHalf(step int) error {
	text := toyState(step + 2)
	return os.WriteFile(toyCheckpoint(step+2), []byte(text[:len(text)/2]), 0o644)
}

// toyLeaves starts a descendant that outlives the toy unless it is killed: a child, a
// child in a session of its own, a daemon (which forks twice), or a child that ignores
// SIGTERM. toyLeaves returns once the descendant is running.
func toyLeaves(kind string) error {
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	c := exec.Command(os.Args[0], "-hold", kind)
	c.Stdout, c.Stderr, c.ExtraFiles = os.Stdout, os.Stderr, []*os.File{write}
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: kind != "child"}
	if err := c.Start(); err != nil {
		return err
	}
	_ = write.Close()
	var ready [1]byte
	if _, err := read.Read(ready[:]); err != nil {
		return err
	}
	if kind == "daemon" {
		return c.Wait()
	}
	return nil
}

// toyHolds is the main function of the descendant that toyLeaves starts.
func toyHolds(kind string) {
	ready := os.NewFile(3, "ready")
	switch kind {
	case "daemon":
		c := exec.Command(os.Args[0], "-hold", "child")
		c.Stdout, c.Stderr, c.ExtraFiles = os.Stdout, os.Stderr, []*os.File{ready}
		if c.Start() != nil {
			os.Exit(toyCannot)
		}
		os.Exit(0)
	case "deaf":
		signal.Ignore(syscall.SIGTERM)
	}
	_, _ = ready.WriteString("x")
	_ = ready.Close()
	time.Sleep(patience)
	os.Exit(0)
}
