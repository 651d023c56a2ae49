package exits

import (
	"fmt"
	"strings"
	"testing"

	"headroom/memory"
	"headroom/recovery"
	"headroom/wrap/command"
)

const oomLine = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate %s. GPU 0 has a total capacity of 24.00 GiB of which 1.00 GiB is free.\n"

func failedWith(format string, a ...any) command.Exit {
	return command.Exit{Code: 1, Tail: fmt.Appendf(nil, format, a...)}
}

// TestHopelessRequests checks when a request larger than the device is hopeless: if not
// even one sample would fit, or if the size is absurd. Otherwise it may shrink with the
// micro-batch.
func TestHopelessRequests(t *testing.T) {
	for _, c := range []struct {
		asked string
		micro int
		want  string
	}{
		{"2.00 GiB", 8, ""},
		{"96.00 GiB", 0, ""},
		{"96.00 GiB", 8, ""},
		{"96.00 GiB", 4, ""},
		{"96.00 GiB", 3, "even one sample would need 32 GiB, and the device has only 24 GiB"},
		{"1536.00 GiB", 512, ""},
		{"1600.00 GiB", 512, "a size was computed wrongly"},
	} {
		o := Classify(failedWith(oomLine, c.asked))
		if got := o.HopelessAt(recovery.Plan{Effective: 512, World: 1, Micro: c.micro, Eval: 2}); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s for %d samples: %q, want %q", c.asked, c.micro, got, c.want)
		}
	}
	assumed := memory.OutOfMemoryError{Phase: memory.PhaseForward, Requested: 96 * memory.GiB, Assumed: true, Stats: memory.Stats{Capacity: 24 * memory.GiB}}
	o := Outcome{Kind: OutOfMemory, Evidence: &memory.Evidence{Failure: assumed}}
	if got := o.HopelessAt(recovery.Plan{Effective: 1, World: 1, Micro: 1}); got != "" {
		t.Errorf("%q, though nothing says how large the device is", got)
	}
	if o := Classify(failedWith("ValueError: x\n")); o.HopelessAt(recovery.Plan{Effective: 1, World: 1, Micro: 1}) != "" {
		t.Errorf("%q is said of an error that is not on memory", o.HopelessAt(recovery.Plan{Effective: 1, World: 1, Micro: 1}))
	}
}

// TestHopelessInEvaluation checks that a failure in evaluation is hopeless unless the
// evaluation batch can be set and made smaller, and that a failure in a training step
// does not depend on that batch.
func TestHopelessInEvaluation(t *testing.T) {
	const gib = memory.GiB
	for _, c := range []struct {
		name      string
		phase     memory.Phase
		hopeless  string
		eval      int
		requested memory.Bytes
		want      string
	}{
		{"a batch that can be set", memory.PhaseEval, OtherKnobs[memory.PhaseEval], 64, 2 * gib, ""},
		{"larger than the device, but not for one sample", memory.PhaseEval, "x; " + OtherKnobs[memory.PhaseEval], 64, 96 * gib, ""},
		{"larger than the device for one sample", memory.PhaseEval, OtherKnobs[memory.PhaseEval], 3, 96 * gib, "3 samples: even one sample would need 32 GiB"},
		{"no batch to set", memory.PhaseEval, OtherKnobs[memory.PhaseEval], 0, 2 * gib, "set a smaller evaluation batch"},
		{"one sample", memory.PhaseEval, OtherKnobs[memory.PhaseEval], 1, 2 * gib, "set a smaller evaluation batch"},
		{"hopeless for another reason", memory.PhaseEval, "every batch size was tried", 64, 2 * gib, "every batch size was tried"},
		{"generation", memory.PhaseGenerate, OtherKnobs[memory.PhaseGenerate], 64, 2 * gib, "generate fewer samples"},
		{"saving", memory.PhaseCheckpoint, OtherKnobs[memory.PhaseCheckpoint], 64, 2 * gib, "saving gathers the weights"},
		{"a step", memory.PhaseForward, "", 0, 2 * gib, ""},
	} {
		o := Outcome{Kind: OutOfMemory, Hopeless: c.hopeless, Evidence: &memory.Evidence{Failure: memory.OutOfMemoryError{
			Phase: c.phase, Requested: c.requested, Stats: memory.Stats{Capacity: 24 * gib}}}}
		got := o.HopelessAt(recovery.Plan{Effective: 8, World: 1, Micro: 8, Eval: c.eval})
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// TestDoneMentionsSwallowedError checks that a command which exits with status 0 is done,
// and that its outcome has a hint if its last output was an error about memory.
func TestDoneMentionsSwallowedError(t *testing.T) {
	e := failedWith(oomLine, "2.00 GiB")
	e.Code = 0
	if o := Classify(e); o.Kind != Done || o.Hint == "" || len(o.Reasons) != 2 {
		t.Errorf("%+v", o)
	}
	e.Tail = append(e.Tail, "{'loss': 2.1, 'epoch': 1.0}\n{'loss': 2.0, 'epoch': 2.0}\n"...)
	if o := Classify(e); o.Kind != Done || o.Hint != "" {
		t.Errorf("after a recovery: %+v", o)
	}
}

// TestWhatProgressShowsRecovery checks which progress after an error shows that the
// command recovered from it. Some progress does not: an exiting command draws its progress
// bar once more, and other ranks finish their current step.
func TestWhatProgressShowsRecovery(t *testing.T) {
	failure := fmt.Sprintf(oomLine, "2.00 GiB")
	for name, c := range map[string]struct {
		after string
		want  Kind
	}{
		"nothing":                       {"", OutOfMemory},
		"the bar is closed":             {"  3%|▎  | 13/400 [00:09<04:51,  1.33it/s]\n", OutOfMemory},
		"nested bars are closed":        {" 0%|  | 1/3 [00:09<04:51]\r  3%|▎  | 13/400 [00:09<04:51,  1.33it/s]\n", OutOfMemory},
		"three steps of a bar":          {"1/9 [00:01<00:01]\r2/9 [00:01<00:01]\r3/9 [00:01<00:01]\n", Failed},
		"a line with a loss":            {"step 14 | loss 2.1\n", Failed},
		"the same state over and again": {strings.Repeat("13/400 [00:09<04:51]\r", 9), OutOfMemory},
		"shards are loaded":             {"Loading checkpoint shards: 1/3 [00:01<00:02]\rLoading checkpoint shards: 2/3 [00:01<00:02]\rLoading checkpoint shards: 3/3 [00:01<00:02]\n", OutOfMemory},
		"another rank ends its step":    {"[rank0]: step 14 | loss 2.1\n", OutOfMemory},
		"other ranks continue":          {"[rank0]: step 14 | loss 2.1\n[rank0]: step 15 | loss 2.0\n", Failed},
		"a summary of the run":          {"wandb: step 14 train/loss 2.1\n", OutOfMemory},
	} {
		got := Classify(command.Exit{Code: 1, Tail: []byte("12/400 [00:08<04:51]\r" + failure + c.after)})
		if got.Kind != c.want {
			t.Errorf("%s: %s, want %s", name, got.Kind, c.want)
		}
	}
}

// TestKills checks that a kill counts as an out-of-memory failure only if one of the
// kernel's counters shows an OOM kill.
func TestKills(t *testing.T) {
	for name, c := range map[string]struct {
		exit command.Exit
		kind Kind
		sure Confidence
	}{
		"SIGKILL":                       {command.Exit{Code: 137, Signal: 9}, Failed, Certain},
		"status 137":                    {command.Exit{Code: 137}, Failed, Certain},
		"SIGKILL, the group counted":    {command.Exit{Code: 137, Signal: 9, Kernel: command.Kernel{GroupKills: 1}}, OutOfHostMemory, Certain},
		"status 137, the group counted": {command.Exit{Code: 137, Kernel: command.Kernel{GroupKills: 1}}, OutOfHostMemory, Certain},
		"SIGKILL, the machine counted":  {command.Exit{Code: 137, Signal: 9, Kernel: command.Kernel{SystemKills: 2}}, OutOfHostMemory, Possible},
		"status 1, the machine counted": {command.Exit{Code: 1, Kernel: command.Kernel{SystemKills: 2}}, Failed, Certain},
		"status 1, the group counted":   {command.Exit{Code: 1, Kernel: command.Kernel{GroupKills: 1}}, OutOfHostMemory, Likely},
		"an error of its own as well":   {command.Exit{Code: 1, Tail: []byte("ValueError: x\n"), Kernel: command.Kernel{GroupKills: 1}}, Failed, Certain},
		"device memory as well":         {command.Exit{Code: 137, Signal: 9, Tail: fmt.Appendf(nil, oomLine, "2.00 GiB"), Kernel: command.Kernel{GroupKills: 1}}, OutOfMemory, Certain},
		"a log on device memory":        {command.Exit{Code: 137, Signal: 9, Tail: []byte("CUDA out of memory. Tried to allocate 2.00 GiB.\n")}, OutOfMemory, Likely},
		"SIGBUS":                        {command.Exit{Code: 135, Signal: 7}, OutOfSharedMemory, Possible},
		"SIGTERM from elsewhere":        {command.Exit{Code: 143, Signal: 15}, Failed, Certain},
		"stopped":                       {command.Exit{Code: 137, Signal: 9, Stopped: true, Kernel: command.Kernel{GroupKills: 1}}, Stopped, Certain},
	} {
		got := Classify(c.exit)
		if got.Kind != c.kind || got.Confidence != c.sure {
			t.Errorf("%s: %s, %s; want %s, %s: %q", name, got.Kind, got.Confidence, c.kind, c.sure, got.Reasons)
		}
		if got.OutOfMemory() != (got.Kind.Memory() && c.sure != Possible) {
			t.Errorf("%s: acted on is %t", name, got.OutOfMemory())
		}
	}
}

// TestSamplesFillIn checks that the numbers about a GPU are taken from the samples if an
// error does not give them: from the samples of the GPU that the error names, or else
// from those of the fullest GPU.
func TestSamplesFillIn(t *testing.T) {
	gpus := []command.GPU{
		{Index: 2, Total: 24 * memory.GiB, Peak: 5 * memory.GiB, Foreign: memory.GiB},
		{Index: 3, Total: 24 * memory.GiB, Peak: 20 * memory.GiB, Foreign: 3 * memory.GiB},
	}
	for text, want := range map[string]memory.Stats{
		"RuntimeError: CUDA error: out of memory\n": {Capacity: 24 * memory.GiB, Free: memory.GiB,
			Reserved: 20 * memory.GiB, Allocated: 20 * memory.GiB, Foreign: 3 * memory.GiB},
		"MyError: CUDA error: out of memory on device 0\n": {Capacity: 24 * memory.GiB, Free: 18 * memory.GiB,
			Reserved: 5 * memory.GiB, Allocated: 5 * memory.GiB, Foreign: memory.GiB},
	} {
		e := failedWith("%s", text)
		e.GPUs = gpus
		got := Classify(e)
		if got.Kind != OutOfMemory || got.Evidence.Failure.Stats != want {
			t.Errorf("%q: %s, %+v", text, got.Kind, got.Evidence)
		}
	}
}

// TestAmbiguousErrors checks that a library's ambiguous error counts as an out-of-memory
// failure only if less than [LittleFree] of a GPU's memory was free.
func TestAmbiguousErrors(t *testing.T) {
	for free, want := range map[memory.Bytes]Kind{
		0: OutOfMemory, 4*memory.GiB - 1: OutOfMemory, 4 * memory.GiB: Failed, 60 * memory.GiB: Failed,
	} {
		e := failedWith("RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`\n")
		e.GPUs = []command.GPU{{Total: 80 * memory.GiB, Peak: 80*memory.GiB - free}}
		if got := Classify(e); got.Kind != want {
			t.Errorf("%v free: %s, want %s", free, got.Kind, want)
		}
	}
}

// TestEvidenceIsDiagnosed checks that Diagnose finds the right cause from the evidence
// that Classify derives from an error message.
func TestEvidenceIsDiagnosed(t *testing.T) {
	for text, want := range map[string]memory.Cause{
		"GPU 0 has a total capacity of 24.00 GiB of which 1.00 GiB is free. Process 7 has 12.00 GiB memory in use. " +
			"Including non-PyTorch memory, this process has 11.00 GiB memory in use. Of the allocated memory 10.00 GiB is allocated by PyTorch, and 200.00 MiB is reserved by PyTorch but unallocated.": memory.Foreign,
		"GPU 0 has a total capacity of 24.00 GiB of which 1.00 GiB is free. Including non-PyTorch memory, this process has 23.00 GiB memory in use. " +
			"Of the allocated memory 15.00 GiB is allocated by PyTorch, and 7.00 GiB is reserved by PyTorch but unallocated.": memory.Fragmentation,
		"GPU 0 has a total capacity of 24.00 GiB of which 1.00 GiB is free. Including non-PyTorch memory, this process has 23.00 GiB memory in use. " +
			"Of the allocated memory 22.00 GiB is allocated by PyTorch, and 200.00 MiB is reserved by PyTorch but unallocated.": memory.Batch,
	} {
		o := Classify(failedWith("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. %s\n", text))
		o.Evidence.Failure.Micro = 8
		if got := memory.Diagnose(*o.Evidence); got.Cause != want {
			t.Errorf("%v, want %s", got, want)
		}
	}
}

// TestAllocatorsLastWords checks that a report of a failed allocation by PyTorch's
// allocator counts as the reason for the end only if it is the last output. The allocator
// reports every failed attempt, even one that it recovers from.
func TestAllocatorsLastWords(t *testing.T) {
	words := "[W1121 10:00:00.123456789 CUDACachingAllocator.cpp:1512] memory allocation failed with OOM on device 0 " +
		"while trying to allocate 2147483648 bytes (free: 402653184, total: 25394479104)\n"
	for name, c := range map[string]struct {
		tail string
		want Kind
	}{
		"at the end":                    {words + "Aborted (core dumped)\n", OutOfMemory},
		"long before the end":           {words + strings.Repeat("something else\n", allocatorNear+1), Failed},
		"before the training continues": {words + "step 14 | loss 2.1\n", Failed},
		"before an error":               {words + "ValueError: x\n", Failed},
	} {
		got := Classify(command.Exit{Code: 134, Signal: 6, Tail: []byte(c.tail)})
		if got.Kind != c.want {
			t.Errorf("%s: %s, want %s", name, got.Kind, c.want)
		}
		if c.want == OutOfMemory && (got.Evidence.Failure.Requested != 2*memory.GiB || got.Confidence != Likely) {
			t.Errorf("%s: %s, %+v", name, got.Confidence, got.Evidence)
		}
	}
}

func TestInHostMemory(t *testing.T) {
	const gib = memory.GiB
	ranOut := func(p memory.Phase, requested memory.Bytes) Outcome {
		return Outcome{Kind: OutOfHostMemory, Confidence: Certain, Hint: "x",
			Evidence: &memory.Evidence{Host: true, Failure: memory.OutOfMemoryError{Requested: requested, Phase: p}}}
	}
	for _, c := range []struct {
		name string
		o    Outcome
		gpus []command.GPU
		most memory.Bytes
		want Kind
	}{
		{"a tensor of a micro-batch", ranOut(memory.PhaseForward, gib), nil, 4 * gib, OutOfMemory},
		{"beside a GPU it is not the training's", ranOut(memory.PhaseForward, gib), []command.GPU{{}}, 4 * gib, OutOfHostMemory},
		{"an evaluation", ranOut(memory.PhaseEval, gib), nil, 4 * gib, OutOfMemory},
		{"while saving", ranOut(memory.PhaseCheckpoint, gib), nil, 4 * gib, OutOfMemory},
		{"while loading", ranOut(memory.PhaseLoad, gib), nil, 4 * gib, OutOfMemory},
		{"killed, with no request known", ranOut(memory.PhaseForward, 0), nil, 4 * gib, OutOfHostMemory},
		{"a machine of unknown size", ranOut(memory.PhaseForward, gib), nil, 0, OutOfHostMemory},
		{"not about memory", Outcome{Kind: Failed}, nil, 4 * gib, Failed},
	} {
		got := c.o.InHostMemory(c.gpus, c.most)
		if got.Kind != c.want || (c.want == OutOfMemory) != (got.Evidence != nil && !got.Evidence.Host) {
			t.Errorf("%s: %+v", c.name, got)
		}
		if got.Kind == OutOfMemory {
			e := *got.Evidence
			e.Failure.Micro = 8
			cause := memory.Model
			if e.Failure.Phase.SizedByMicro() {
				cause = memory.Batch
			}
			if v := memory.Diagnose(e); v.Cause != cause || got.Hopeless != OtherKnobs[e.Failure.Phase] || got.Hint != "" {
				t.Errorf("%s: %v, %q, %q", c.name, v, got.Hopeless, got.Hint)
			}
		}
	}
}
