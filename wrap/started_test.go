package wrap

import (
	"strings"
	"testing"
	"testing/fstest"

	"headroom/wrap/command"
	"headroom/wrap/profile"
	"headroom/wrap/rewrite"
)

// foreseen returns what foreseen says about a command, and what the next smaller
// micro-batch would change.
func foreseen(c command.Line, g rewrite.Given, trust bool) (string, *Smaller) {
	w := New(c, profile.Builtin(), g)
	if w.Trust = trust; w.Match == nil {
		return w.foreseen(), nil
	}
	return w.foreseen(), w.smaller()
}

// TestForeseen checks that foreseen reports in advance what would be refused once memory
// has run out, with the same reason, and that it reports nothing if nothing would be
// refused.
func TestForeseen(t *testing.T) {
	const (
		nothing = "if the command has to start again, nothing can be made smaller: "
		later   = "if the command has to start again after a checkpoint, nothing can be made smaller: "
		epoch   = "a smaller micro-batch requires that an epoch has as many steps as before, which is the case if its number of samples is a multiple of the effective batch"
		within  = "cannot resume: lightning records its position in micro-batches, and this checkpoint may be from the middle of an epoch: the command would resume at a different position with micro-batch 8 instead of 16; save only at the ends of epochs, and give the training's length in epochs"
		hf      = "python run_clm.py --output_dir o --per_device_train_batch_size 16"
		lit     = "python main.py fit --trainer.accumulate_grad_batches 1 --data.batch_size 16"
	)
	own := []string{"micro=--bs", "accumulation=--acc"}
	for _, c := range []struct {
		name, command string
		knobs         []string
		trust         bool
		want          string
	}{
		{"nothing would be refused", hf + " --max_steps 9000", nil, false, ""},
		{"the length is in epochs", hf, nil, false, nothing + epoch + ", or if --max_steps is given; pass --trust if so"},
		{"the user has vouched", hf, nil, true, ""},
		{"there is no smaller one", "python run_clm.py --output_dir o --per_device_train_batch_size 1", nil, false, ""},
		{"nothing is known of it", "python mine.py --bs 8 --acc 1", nil, false, ""},
		{"no accumulation", "python mine.py --bs 8", []string{"micro=--bs"}, false, nothing + "micro-batch 4: no knob sets the accumulation, so a smaller micro-batch would change the effective batch; name one with --knob accumulation=FLAG"},
		{"no accumulation, and trust does not help", "python mine.py --bs 8", []string{"micro=--bs"}, true, nothing + "micro-batch 4: no knob sets the accumulation, so a smaller micro-batch would change the effective batch; name one with --knob accumulation=FLAG"},
		{"a script", "python mine.py --bs 8 --acc 1", own, false, nothing + "a smaller micro-batch requires that the script divides each loss by the accumulation, and that the learning rate does not depend on the micro-batch alone, and that the loss does not compare the samples of a batch with each other; pass --trust if so"},
		{"a script that is vouched for", "python mine.py --bs 8 --acc 1", append(own, "resume=--from", "checkpoints=out/*"), true, ""},
		{"epochs of Lightning", lit, nil, false, nothing + epoch + "; pass --trust if so"},
		{"epochs of Lightning, and the user has vouched", lit, nil, true, ""},
		{"steps of Lightning", lit + " --trainer.max_steps 100", nil, false, later + within},
		{"validation within epochs of Lightning", lit + " --trainer.val_check_interval 0.5", nil, false, "if the command has to start again, nothing can be made smaller, neither before the first checkpoint (" + epoch + "; pass --trust if so) nor after it (" + within + ")"},
		{"trl of an unknown version", "python sft.py --output_dir o --per_device_train_batch_size 16 --max_steps 9000", nil, false, later + "cannot resume: trl needs trl 1.16.0 or later to resume, but the installed version is not known"},
	} {
		given := rewrite.Given{Knobs: c.knobs, Files: fstest.MapFS{
			"work/main.py": {Data: []byte("from lightning.pytorch.cli import LightningCLI")},
			"work/sft.py":  {Data: []byte("from trl import SFTTrainer, SFTConfig, TrlParser")},
		}}
		if got, _ := foreseen(command.Line{Args: strings.Fields(c.command), Dir: "/work"}, given, c.trust); got != c.want {
			t.Errorf("%s:\n%s\nwant\n%s", c.name, got, c.want)
		}
	}
}

// TestForeseenEveryCommand checks that foreseen repeats the reason that an explanation
// gives for refusing the next smaller micro-batch. If the explanation gives no reason,
// foreseen may only say that resuming would fail.
func TestForeseenEveryCommand(t *testing.T) {
	for name, archive := range commandFiles(t) {
		s := readScenario(t, archive)
		got, smaller := foreseen(s.command, s.given, false)
		want := ""
		if smaller != nil && len(smaller.Prove) > 0 {
			want = (&UnprovenError{smaller.Prove}).Error()
		} else if smaller != nil {
			want = smaller.Refused
		}
		if !strings.Contains(got, want) || want == "" && got != "" && !strings.Contains(got, "after a checkpoint") || smaller == nil && got != "" {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}
