package wrap

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"headroom/harness"
	"headroom/memory"
	"headroom/recovery"
	"headroom/wrap/command"
	"headroom/wrap/profile"
	"headroom/wrap/rewrite"
)

// fitting returns a function that simulates trials. Sizes up to limit fit. each is the
// memory that one sample needs, and room is what a trial could hold.
func fitting(limit int, each, room memory.Bytes) func(context.Context, recovery.Plan) (Tried, error) {
	return func(_ context.Context, p recovery.Plan) (Tried, error) {
		n := p.Largest()
		return Tried{Micro: n, Accumulation: p.Accumulation(), Fits: n <= limit, Peak: memory.Bytes(n) * each, Room: room, Text: fmt.Sprint("micro-batch ", n)}, nil
	}
}

// trajectory returns the sizes of the trials in order, with ! after those that did not
// fit.
func trajectory(trials []Tried) string {
	var b strings.Builder
	for _, t := range trials {
		fmt.Fprintf(&b, " %d", t.Micro)
		if !t.Fits {
			b.WriteByte('!')
		}
	}
	return strings.TrimPrefix(b.String(), " ")
}

func TestFind(t *testing.T) {
	powers := []int{1, 2, 4, 8, 16, 32, 64}
	for _, c := range []struct {
		name        string
		sizes       []int
		asked       int
		limit       int
		each, room  memory.Bytes
		trials      string
		recommended int
		reason      string
	}{
		{"what is asked for and no more", powers, 8, 8, 0, 0, "8 64! 16!", 8, "micro-batch 8 is the largest that fits among those that keep the effective batch; 16, the next size, does not fit"},
		{"all", powers, 64, 64, 0, 0, "64", 64, "micro-batch 64 fits and is the largest that was asked for"},
		{"one sample alone", powers, 64, 1, 0, 0, "64! 8! 1 4! 2!", 1, "micro-batch 1 is the largest that fits"},
		{"neighbours", []int{1, 2, 3, 6}, 3, 2, 0, 0, "3! 1 2", 2, "micro-batch 2 is the largest that fits"},
		{"one size", []int{8}, 8, 8, 0, 0, "8", 8, "fits and is the largest that was asked for"},
		{"room to spare", powers, 32, 32, memory.GiB, 40 * memory.GiB, "32 64!", 32, "in 40 GiB, micro-batch 32 is the largest that fits among those that keep the effective batch; 64, the next size, does not fit; sizes up to 32 leave at least 8 % of the memory unused"},
		{"hardly room", powers, 32, 32, memory.GiB, 33 * memory.GiB, "32 64! 16", 16, "sizes up to 16 leave at least 8 % of the memory unused"},
		{"no room at all", []int{1, 2}, 1, 1, memory.GiB, memory.GiB, "1 2!", 1, "no size leaves at least 8 % of the memory unused, and 1, the smallest, leaves the most"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var told []Tried
			top := c.sizes[len(c.sizes)-1]
			found, err := Find(context.Background(), FindOptions{Asked: recovery.Plan{Effective: top, World: 1, Micro: c.asked, Uniform: true}, Sizes: c.sizes, Headroom: 0.08,
				Try: fitting(c.limit, c.each, c.room), OnTried: func(t Tried) { told = append(told, t) }})
			if err != nil {
				t.Fatal(err)
			}
			if got := trajectory(found.Trials); got != c.trials || trajectory(told) != c.trials {
				t.Errorf("trials %s, told %s, want %s", got, trajectory(told), c.trials)
			}
			if found.Largest.Micro != c.limit || found.Recommended.Micro != c.recommended || found.Recommended.Effective != top || !strings.Contains(found.Reason, c.reason) {
				t.Errorf("largest %d, want %d; %v, want %d; %s, want %q", found.Largest.Micro, c.limit, found.Recommended, c.recommended, found.Reason, c.reason)
			}
		})
	}
}

// TestFindProperty checks that Find finds the largest size that fits and tries no size
// twice, whatever the sizes are and whichever is asked for.
func TestFindProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		plan := recovery.Plan{Effective: rapid.IntRange(1, 5000).Draw(t, "effective"), World: 1, Uniform: true}
		var sizes []int
		for n := plan.Below(plan.Effective + 1); n > 0; n = plan.Below(n) {
			sizes = append([]int{n}, sizes...)
		}
		plan.Micro = rapid.SampledFrom(sizes).Draw(t, "asked")
		largest := rapid.SampledFrom(sizes).Draw(t, "largest")
		found, err := Find(context.Background(), FindOptions{Asked: plan, Sizes: sizes, Try: fitting(largest, 0, 0)})
		if err != nil {
			t.Fatal(err)
		}
		seen, fitted := map[int]bool{}, 0
		for _, one := range found.Trials {
			if seen[one.Micro] {
				t.Fatalf("twice: %s", trajectory(found.Trials))
			}
			next := sizes[min(slices.Index(sizes, fitted)+1, len(sizes)-1)]
			if one.Micro > max(plan.Micro, reach*fitted, next) {
				t.Fatalf("too far: %s", trajectory(found.Trials))
			}
			if seen[one.Micro] = true; one.Fits {
				fitted = max(fitted, one.Micro)
			}
		}
		if found.Largest.Micro != largest || found.Recommended.Micro != largest || !seen[largest] {
			t.Fatalf("found %d, want %d of %v: %s", found.Largest.Micro, largest, sizes, trajectory(found.Trials))
		}
	})
}

func TestFindEnds(t *testing.T) {
	broken := errors.New("broken")
	plan := recovery.Plan{Effective: 8, World: 1, Micro: 4, Uniform: true}
	sizes := []int{1, 2, 4, 8}
	_, err := Find(context.Background(), FindOptions{Asked: plan, Sizes: sizes, Try: func(_ context.Context, p recovery.Plan) (Tried, error) {
		if p.Micro == 1 {
			return Tried{}, broken
		}
		return Tried{Micro: p.Micro}, nil
	}})
	if !errors.Is(err, broken) {
		t.Errorf("another failure: %v", err)
	}
	for _, asked := range []int{1, 4} {
		plan.Micro = asked
		_, err = Find(context.Background(), FindOptions{Asked: plan, Sizes: sizes, Try: fitting(0, 0, 0)})
		var gave *harness.GaveUpError
		if !errors.As(err, &gave) || gave.Decision.Verdict.Cause != memory.Model || !strings.Contains(err.Error(), "micro-batch 1") {
			t.Errorf("nothing fits: %v", err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	_, err = Find(ctx, FindOptions{Asked: plan, Sizes: sizes, Try: func(context.Context, recovery.Plan) (Tried, error) {
		cancel()
		return Tried{}, harness.ErrInterrupted
	}})
	if !errors.Is(err, harness.ErrInterrupted) {
		t.Errorf("interrupted: %v", err)
	}
}

// looked returns the samples that text describes. Each character stands for one sample. A
// digit is a sample at which the trial holds that many bytes while a GPU computes. A
// period is a sample at which the trial holds no more than before while a GPU computes,
// and an apostrophe is the same while no GPU computes. An underscore is a sample that is
// missing.
func looked(text string) (samples []sample) {
	held := memory.Bytes(0)
	for i, r := range text {
		at := time.Duration(i) * sampleEvery
		switch {
		case r >= '0' && r <= '9':
			held = max(held, memory.Bytes(r-'0'))
			samples = append(samples, sample{at, held, true})
		case r == '.':
			samples = append(samples, sample{at, held, true})
		case r == '\'':
			samples = append(samples, sample{at, held, false})
		}
	}
	return samples
}

func TestFlat(t *testing.T) {
	for _, c := range []struct {
		name, looks string
		want        bool
	}{
		{"nothing yet", "", false},
		{"no GPU is used", "0" + strings.Repeat(".", 40), false},
		{"just long enough", "0013" + strings.Repeat(".", 20), true},
		{"not quite", "0013" + strings.Repeat(".", 19), false},
		{"a new peak", "0013" + strings.Repeat(".", 20) + "4.", false},
		{"less than before is none", "0013" + strings.Repeat("2.", 10), true},
		{"it loads data", "0013" + strings.Repeat("'", 40), false},
		{"it loads data, then trains, and the optimizer comes", "0013" + strings.Repeat("'", 40) + strings.Repeat(".", 10) + "5....", false},
		{"it trains with pauses", "0013" + strings.Repeat(".'", 10), true},
		{"it mostly pauses", "0013" + strings.Repeat(".''", 10), false},
		{"the machine slept", "0013" + strings.Repeat("_", 40) + "....", false},
	} {
		if got := flat(looked(c.looks), 10*time.Second); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

const fullText = "Traceback (most recent call last):\n  File \"t.py\", line 1, in <module>\n    loss = model(x)\n" +
	"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.25 GiB of which 1.10 GiB is free. Process 71 has 78.14 GiB memory in use. Of the allocated memory 77.50 GiB is allocated by PyTorch, and 100.00 MiB is reserved by PyTorch but unallocated.\n"

func TestJudge(t *testing.T) {
	const gib = memory.GiB
	gpu := func(peak memory.Bytes) []command.GPU {
		return []command.GPU{{Total: 80 * gib, Peak: peak, Before: 2 * gib, Foreign: gib}}
	}
	for _, c := range []struct {
		name   string
		exit   command.Exit
		stayed bool
		memory memory.Bytes
		want   string // part of the trial's text or, after ERROR, of its error
		peak   memory.Bytes
		room   memory.Bytes
		steps  int
	}{
		{"its steps are made", command.Exit{GPUs: gpu(50 * gib)}, false, 0, "micro-batch 4 fits: peak 50 GiB", 50 * gib, 78 * gib, 3},
		{"no GPU", command.Exit{}, false, 0, "micro-batch 4 fits", 0, 0, 3},
		{"out of memory", command.Exit{Code: 1, Tail: []byte(fullText), GPUs: gpu(77 * gib)}, false, 0, "micro-batch 4 does not fit: it needs at least 79.5 GiB", 79*gib + gib/2, 78 * gib, 0},
		{"out of the machine's own memory", command.Exit{Code: 1, Tail: []byte("RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 33554432 bytes. Error code 12 (Cannot allocate memory)\n")}, false, 0, "micro-batch 4 does not fit: it needs at least 32 MiB more than is available", 0, 0, 0},
		{"ended while flat", command.Exit{Code: 143, Signal: 15, Stopped: true, GPUs: gpu(50 * gib)}, true, 0, "micro-batch 4 fits: peak 50 GiB, unchanged for 1m0s", 50 * gib, 78 * gib, 0},
		{"ended while flat, and had run out", command.Exit{Code: 1, Stopped: true, Tail: []byte(fullText), GPUs: gpu(60 * gib)}, true, 0, "micro-batch 4 does not fit", 79*gib + gib/2, 78 * gib, 0},
		{"it swallowed its failure", command.Exit{Tail: []byte(fullText)}, false, 0, "exited with status 0 after running out of memory", 0, 0, 0},
		{"more than is pretended", command.Exit{GPUs: gpu(30 * gib)}, false, 24 * gib, "the trial held 30 GiB, more than the 24 GiB being simulated", 30 * gib, 24 * gib, 0},
		{"within what is pretended", command.Exit{GPUs: gpu(20 * gib)}, false, 24 * gib, "micro-batch 4 fits: peak 20 GiB", 20 * gib, 24 * gib, 3},
		{"a mistake in the script", command.Exit{Code: 3, Tail: []byte("epoch 1\nKeyError: 'x'\n")}, false, 0, "ERROR the trial of micro-batch 4 failed, and not for lack of memory: exit status 3", 0, 0, 0},
		{"an old PyTorch", command.Exit{Code: 1, Tail: []byte("RuntimeError: Unrecognized CachingAllocator option: per_process_memory_fraction\n")}, false, gib, "ERROR this PyTorch does not support", 0, 0, 0},
		{"while loading", command.Exit{Code: 1, Tail: []byte(strings.Replace(fullText, "    loss = model(x)\n", "    model.cuda()\n"+"  File \"/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py\", line 12, in _apply\n    param_applied = fn(param)\n", 1))}, false, 0, "ERROR micro-batch 4 does not fit, and no smaller one will: loading the model", 0, 0, 0},
	} {
		trials := &Trials{Match: &rewrite.Match{Profile: profile.Profile{Trial: profile.Rehearsal{Steps: 3}}}, Memory: c.memory, FlatFor: time.Minute}
		got, err := trials.judge(recovery.Plan{Effective: 4, World: 1, Micro: 4}, c.exit, c.stayed, gib)
		text := got.Text
		if err != nil {
			text = "ERROR " + err.Error()
		}
		if !strings.Contains(text, c.want) || got.Fits != (strings.Contains(c.want, "4 fits")) {
			t.Errorf("%s: %s, want %s", c.name, text, c.want)
		}
		if err == nil && (got.Peak != c.peak || got.Room != c.room || got.Steps != c.steps) {
			t.Errorf("%s: peak %v of %v, %d steps; want %v of %v, %d", c.name, got.Peak, got.Room, got.Steps, c.peak, c.room, c.steps)
		}
	}
}

func TestCapped(t *testing.T) {
	const gib = memory.GiB
	for _, c := range []struct {
		env  []string
		most memory.Bytes
		want string
	}{
		{nil, 24 * gib, "per_process_memory_fraction:0.3000"},
		{[]string{"PYTORCH_ALLOC_CONF=expandable_segments:True"}, 8 * gib, "expandable_segments:True,per_process_memory_fraction:0.1000"},
		{[]string{"PYTORCH_ALLOC_CONF=a:1", "PYTORCH_CUDA_ALLOC_CONF=a:1"}, 8 * gib, "a:1,per_process_memory_fraction:0.1000"},
		{[]string{"PYTORCH_ALLOC_CONF=a:1", "PYTORCH_CUDA_ALLOC_CONF=a:2"}, 8 * gib, "ERROR PYTORCH_CUDA_ALLOC_CONF and PYTORCH_ALLOC_CONF differ"},
		{[]string{"PYTORCH_ALLOC_CONF=per_process_memory_fraction:0.5"}, 8 * gib, "ERROR PYTORCH_ALLOC_CONF already sets per_process_memory_fraction"},
		{nil, 81 * gib, "ERROR 81 GiB is more than the GPU's 80 GiB"},
	} {
		got, err := capped(command.Line{Env: c.env}, c.most, 80*gib)
		for _, name := range []string{"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"} {
			value, _ := got.Getenv(name)
			if err != nil {
				value = "ERROR " + err.Error()
			}
			if !strings.HasPrefix(value, c.want) || err == nil && value != c.want {
				t.Errorf("%v: %s, want %s", c.env, value, c.want)
			}
		}
		if len(c.env) > 0 && !slices.Equal(c.env, got.Env[:len(c.env)]) {
			t.Errorf("%v became %v", c.env, got.Env)
		}
	}
}

func TestLastLines(t *testing.T) {
	if got := lastLines("one\n\n 1%\r 50%\r100%\nthree \r\n\n", 2); got != "100%\nthree" {
		t.Errorf("%q", got)
	}
}
