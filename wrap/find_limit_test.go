package wrap

import (
	"context"
	"strings"
	"testing"

	"headroom/memory"
	"headroom/recovery"
	"headroom/wrap/command"
	"headroom/wrap/profile"
	"headroom/wrap/rewrite"
)

// TestFindWithinALimit checks the result for a command whose allocator may hold only a
// part of a GPU. The result must state the size of that part, and must leave the given
// share of that part unused. Either a failed trial or the command's settings name the
// limit.
func TestFindWithinALimit(t *testing.T) {
	const gib = memory.GiB
	limit := 5*gib + 6*gib/10
	for _, c := range []struct {
		name        string
		trial       func(t *Tried)
		trials      string
		recommended int
		reason      string
	}{
		{"a failure names it, and what is held besides", func(t *Tried) {
			if !t.Fits {
				t.Limit, t.beside = limit, 7*gib/10
			}
		}, "512! 64! 8 32", 32, "in 5.6 GiB, micro-batch 32 is the largest that fits among those that keep the effective batch; 64, the next size, does not fit; sizes up to 32 leave at least 8 % of the memory unused"},
		{"the settings name it", func(t *Tried) { t.Limit = limit }, "512! 64! 8 32 16", 16, "in 5.6 GiB, micro-batch 32 is the largest that fits among those that keep the effective batch; 64, the next size, does not fit; sizes up to 16 leave at least 8 % of the memory unused"},
		{"it is more than there is", func(t *Tried) { t.Limit, t.beside = 150*gib, gib }, "512! 64! 8 32", 32, "in 140.4 GiB, micro-batch 32 is"},
		{"nothing names it", func(*Tried) {}, "512! 64! 8 32", 32, "in 140.4 GiB, micro-batch 32 is"},
	} {
		plan := recovery.Plan{Effective: 512, World: 1, Micro: 512, Uniform: true}
		found, err := Find(context.Background(), FindOptions{Asked: plan, Sizes: []int{1, 2, 4, 8, 16, 32, 64, 128, 256, 512}, Headroom: 0.08,
			Try: func(_ context.Context, p recovery.Plan) (Tried, error) {
				one := Tried{Micro: p.Largest(), Fits: p.Largest() <= 32, Peak: 33*gib/10 + memory.Bytes(p.Largest())*68*memory.MiB, Room: 140*gib + 4*gib/10}
				c.trial(&one)
				return one, nil
			}})
		if err != nil {
			t.Fatal(err)
		}
		if got := trajectory(found.Trials); got != c.trials || found.Recommended.Micro != c.recommended || !strings.Contains(found.Reason, c.reason) || !strings.Contains(c.reason, found.Available.String()) {
			t.Errorf("%s: %s, want %s; recommended %v; %v available; %s", c.name, got, c.trials, found.Recommended, found.Available, found.Reason)
		}
	}
}

// TestJudgeWithinALimit checks that the numbers of a failed trial come from the trial's
// own error, both in its text and in the table. The allocator's limit comes from that
// error, too, or else from the command's settings, unless the trial shows that they are
// not in force.
func TestJudgeWithinALimit(t *testing.T) {
	const gib = memory.GiB
	const fraction = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True,per_process_memory_fraction:0.0500"
	full := strings.Replace(fullText, "is free. Process 71 has 78.14 GiB memory in use.", "is free. 3.50 GiB allowed;", 1)
	full = strings.Replace(full, "77.50 GiB is allocated", "3.00 GiB is allocated", 1)
	for _, c := range []struct {
		name                      string
		code                      int
		env, args                 string
		held                      memory.Bytes
		pretended                 memory.Bytes
		text                      string
		peak, room, limit, beside memory.Bytes
	}{
		{"its error names the limit", 1, "A=b", "python t.py", 4 * gib, 0, "it needs at least 5 GiB with 3.5 GiB available", 5 * gib, 80 * gib, 3*gib + gib/2, gib / 2},
		{"its error counts more than the settings", 1, fraction, "python t.py", 4 * gib, 0, "it needs at least 5 GiB with 3.5 GiB available", 5 * gib, 80 * gib, 3*gib + gib/2, gib / 2},
		{"it fits, and the settings name the limit", 0, fraction, "python t.py", 3 * gib, 0, "fits: peak 3 GiB", 3 * gib, 80 * gib, 4 * gib, 0},
		{"in the command", 0, "A=b", fraction + " python t.py", 6 * gib, 0, "fits: peak 6 GiB", 6 * gib, 80 * gib, 4 * gib, 0},
		{"it held more than the settings allow", 0, fraction, "python t.py", 7 * gib, 0, "fits: peak 7 GiB", 7 * gib, 80 * gib, 0, 0},
		{"all of the GPU", 0, "PYTORCH_ALLOC_CONF=per_process_memory_fraction:1.0", "python t.py", 3 * gib, 0, "fits: peak 3 GiB", 3 * gib, 80 * gib, 0, 0},
		{"no settings", 0, "A=b", "python t.py", 3 * gib, 0, "fits: peak 3 GiB", 3 * gib, 80 * gib, 0, 0},
		{"less is pretended", 1, "A=b", "python t.py", 4 * gib, 4 * gib, "it needs at least 5 GiB with 3.5 GiB available", 5 * gib, 4 * gib, 0, 0},
	} {
		line := command.Line{Args: strings.Fields(c.args), Env: []string{c.env}, Dir: "/"}
		launch, err := command.Peel(line)
		if err != nil {
			t.Fatal(err)
		}
		trials := &Trials{Match: &rewrite.Match{Command: line, Launch: launch, Profile: profile.Profile{Trial: profile.Rehearsal{Steps: 3}}}, Memory: c.pretended}
		exit := command.Exit{Code: c.code, GPUs: []command.GPU{{Total: 80 * gib, Peak: c.held}}}
		if c.code != 0 {
			exit.Tail = []byte(full)
		}
		got, err := trials.judge(recovery.Plan{Effective: 4, World: 1, Micro: 4}, exit, false, 0)
		if err != nil || !strings.Contains(got.Text, c.text) || got.Peak != c.peak || got.Room != c.room || got.Limit != c.limit || got.beside != c.beside {
			t.Errorf("%s: %+v, %v", c.name, got, err)
		}
	}
}
