package rewrite

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"headroom/recovery"
	"headroom/wrap/command"
	"headroom/wrap/profile"
)

// custom returns a user's profile with the given lines. Each of them replaces the line
// with the same key, or is added if there is none.
func custom(t *testing.T, lines ...string) profile.Profile {
	t.Helper()
	text := "name: custom\nmatch: {flags: [--micro, --accum]}\nknobs:\n  micro: {flags: [--micro], min: 2}\n  accumulation: {flags: [--accum], default: 1}\n" +
		"  eval: {flags: [--eval], default: 4}\n  small: {flags: [--small], type: switch}\n  retry: {flags: [--retry], type: bool}\nlaw: {write: [micro, accumulation]}\n" +
		"fallbacks: [{name: recompute, set: {small: \"true\"}}]\nswitch_off: {retry: \"false\"}\nnormalised: \"true\"\n"
	for _, line := range lines {
		key, _, _ := strings.Cut(line, ":")
		old := slices.Collect(strings.Lines(text))
		old = slices.DeleteFunc(old, func(l string) bool { return strings.HasPrefix(l, key+":") })
		text = strings.Join(old, "") + line + "\n"
	}
	p, err := profile.Parse("custom.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestRewriteByCustomProfile(t *testing.T) {
	for _, c := range []struct {
		name, command, line string
		change              func(*recovery.Plan)
		fallbacks           []string
		want                string
	}{
		{"nothing to do", "python t.py --micro 8 --retry", "", nil, nil, "--micro 8 --retry"},
		{"smaller", "python t.py --micro 8 --retry", "", micros(4), nil, "--micro 4 --retry=false --accum 2"},
		{"evaluation alone", "python t.py --micro 8", "", func(p *recovery.Plan) { p.Eval = 2 }, nil, "--micro 8 --eval 2"},
		{"recompute", "python t.py --micro 8", "", nil, []string{"recompute"}, "--micro 8 --small"},
		{"recompute that is on", "python t.py --micro 8 --small", "", nil, []string{"recompute"}, "--micro 8 --small"},
		{"in front of its own --", "python t.py --micro 8 -- --micro 3", "", micros(2), nil, "--micro 2 --accum 4 -- --micro 3"},
		{"no such fallback", "python t.py --micro 8", "", nil, []string{"offload"}, "fallback: offload: custom has no such fallback"},
		{"below its bound", "python t.py --micro 8", "", micros(1), nil, "micro-batch 1: custom needs a micro-batch of at least 2"},
		{"more than is there", "python t.py --micro 8", "", func(p *recovery.Plan) { p.Effective = 16 }, nil, "the command trains on 8 samples per step with 1 ranks, but the plan has 16 on 1"},
		{"not a divisor", "python t.py --micro 12", "", func(p *recovery.Plan) { p.Micro, p.Uniform = 5, false }, nil, "not a multiple of the micro-batch; the nearest micro-batches that keep the effective batch are 4 and 6"},
		{"learning rate by micro-batch", "python t.py --micro 8", "lr_coupling: micro", micros(4), nil, "scales the learning rate by the micro-batch alone"},
		{"summed gradients", "python t.py --micro 8", `normalised: "false"`, micros(4), nil, "does not divide the loss by the number of accumulation steps"},
		{"law broken", "python t.py --micro 8", `law: {write: [micro, accumulation], require: ["micro % 8 == 0"]}`, micros(4), nil, "custom needs micro % 8 == 0"},
		{"together", "python t.py --micro 8 --accum 2", `law: {write: [micro, accumulation], exclude: [[micro, accumulation]]}`, micros(4), nil, "custom does not accept it together with accumulation"},
		{"without a value", "python t.py --accum 2 --micro", "", micros(4), nil, "micro: --micro: has no value"},
		{"present and empty", "python t.py --micro=", "", micros(4), nil, "micro: --micro: present but empty"},
		{"not given", "python t.py --accum 2", "", micros(4), nil, "micro: --micro: not given"},
	} {
		var lines []string
		if c.line != "" {
			lines = append(lines, c.line)
		}
		got := rewritten(t, custom(t, lines...), c.command, c.change, c.fallbacks)
		if got != c.want && (!strings.Contains(got, c.want) || strings.HasPrefix(c.want, "--")) {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func micros(n int) func(*recovery.Plan) { return func(p *recovery.Plan) { p.Micro = n } }

// rewritten returns the arguments after the script in the rewritten command, or the text of
// the error.
func rewritten(t *testing.T, p profile.Profile, line string, change func(*recovery.Plan), fallbacks []string) string {
	t.Helper()
	before := strings.Fields(line)
	m, err := Recognise(command.Line{Args: before, Dir: "/"}, []profile.Profile{p}, Given{Profile: p.Name})
	if err != nil {
		t.Fatal(err)
	}
	asked, err := Asks(m)
	if err != nil {
		return err.Error()
	}
	if change != nil {
		change(&asked.Plan)
	}
	out, err := To(m, asked.Plan, Resume{}, fallbacks...)
	if err != nil {
		return err.Error()
	}
	if !slices.Equal(m.Command.Args, strings.Fields(line)) {
		t.Errorf("the user's own command was changed: %q", m.Command.Args)
	}
	return strings.Join(out.Command.Args[2:], " ")
}

// TestRanksThatAreNotKnown checks that a value that is a total over all ranks needs the
// number of ranks, and that a value per rank does not.
func TestRanksThatAreNotKnown(t *testing.T) {
	line := command.Line{Args: strings.Fields("torchrun --nproc-per-node=gpu t.py --bs 8 --accum 2"), Dir: "/"}
	for _, c := range []struct {
		knob  string
		world int
		want  string
	}{
		{"micro=--bs", 0, "micro-batch 8 × 2, effective 16"},
		{"micro=--bs", 4, "micro-batch 8 × 2 × 4 ranks, effective 64"},
		{"micro=--bs@total", 0, "the number of ranks is not known (--nproc_per_node gpu does not give a fixed number of processes), and micro depends on it; give it with --world"},
		{"micro=--bs@total", 4, "micro-batch 2 × 2 × 4 ranks, effective 16"},
		{"micro=--bs@total", 3, "micro: --bs: 8: is counted over all ranks, and is not divisible by 3"},
	} {
		m, err := Recognise(line, profile.Builtin(), Given{Knobs: []string{c.knob, "accumulation=--accum"}, World: c.world})
		if err != nil {
			t.Fatal(err)
		}
		asked, err := Asks(m)
		got := fmt.Sprint(asked.Plan)
		if err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s, %d ranks: %s, want %s", c.knob, c.world, got, c.want)
		}
		if (len(asked.Unknown) > 0) != (c.world == 0 && err == nil) {
			t.Errorf("%s, %d ranks: unknown %q", c.knob, c.world, asked.Unknown)
		}
	}
}

// TestProfilesOfAUsers checks that neither of two profiles that fit equally well is
// chosen, and that a user's profile replaces the built-in one of the same name.
func TestProfilesOfAUsers(t *testing.T) {
	files := fstest.MapFS{
		"p/a.yaml": {Data: []byte("name: a\nmatch: {argv: 't\\.py', flags: [--bs]}\nknobs: {micro: {flags: [--bs]}, accumulation: {flags: [--acc], default: 1}}\nlaw: {write: [micro, accumulation]}\n")},
		"p/b.yaml": {Data: []byte("name: timm\nmatch: {argv: 't\\.py', flags: [--bs]}\nknobs: {micro: {flags: [--bs]}, accumulation: {flags: [--acc], default: 1}}\nlaw: {write: [micro, accumulation]}\n")},
		"p/c.txt":  {Data: []byte("no profile")},
	}
	own, err := profile.Load(files, "p")
	if err != nil || len(own) != 2 {
		t.Fatal(own, err)
	}
	all := profile.Over(own, profile.Builtin())
	if len(all) != len(profile.Builtin())+1 {
		t.Errorf("%d profiles", len(all))
	}
	c := command.Line{Args: strings.Fields("python t.py --bs 4"), Dir: "/"}
	var not *NotRecognisedError
	if _, err := Recognise(c, all, Given{}); !errors.As(err, &not) || !strings.Contains(err.Error(), "the scores of a and timm are less than 2 points apart") {
		t.Errorf("%v", err)
	}
	if m, err := Recognise(c, all, Given{Profile: "a"}); err != nil || m.Profile.Name != "a" {
		t.Errorf("%v", err)
	}
	if _, err := Recognise(c, all, Given{Profile: "tim"}); !errors.As(err, &not) || !strings.Contains(err.Error(), "did you mean timm?") {
		t.Errorf("%v", err)
	}
	if _, err := Recognise(c, all, Given{Profile: "tim", Knobs: []string{"micro=--bs"}}); !errors.As(err, &not) {
		t.Errorf("a profile that there is not, with knobs: %v", err)
	}
	files["p/d.yaml"] = &fstest.MapFile{Data: []byte("name: a\n")}
	files["p/e.yaml"] = files["p/a.yaml"]
	if _, err := profile.Load(files, "p"); err == nil || !strings.Contains(err.Error(), "p/d.yaml: match: missing") || !strings.Contains(err.Error(), "p/e.yaml: name: a: a profile in another file has this name, too") {
		t.Errorf("%v", err)
	}
	if _, err := profile.Load(files, "none.yaml"); err == nil {
		t.Error("a profile that is not there was read")
	}
}

// TestEffectiveBatchThatGrows checks that, while the effective batch grows, the
// micro-batch times the number of ranks divides every size that the effective batch
// takes, since the framework computes the accumulation of each step. The schedule itself
// never changes.
func TestEffectiveBatchThatGrows(t *testing.T) {
	p, err := profile.Parse("grows.yaml", []byte("name: grows\nmatch: {flags: [--micro]}\nlaw: {write: [micro], derive: accumulation}\n"+
		"knobs: {micro: {flags: [--micro]}, global: {flags: [--global]}, accumulation: {flags: [--accum]}, rampup: {flags: [--rampup]}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	const two = "torchrun --nproc-per-node=2 t.py "
	for _, c := range []struct {
		command string
		change  func(*recovery.Plan)
		want    string
	}{
		{two + "--micro 8 --global 96 --rampup 32 16 50000", micros(4), "t.py --micro 4 --global 96 --rampup 32 16 50000"},
		{two + "--micro 8 --global 96 --rampup=32,16,50000", micros(2), "t.py --micro 2 --global 96 --rampup=32,16,50000"},
		{two + "--micro 8 --global 96 --rampup 32 16 50000", micros(6), "t.py --micro 4 --global 96 --rampup 32 16 50000"}, // 6 divides 96 / 2, and not 32 / 2
		{two + "--micro 8 --global 96 --rampup 32 16 50000", func(p *recovery.Plan) { p.Micro, p.Uniform, p.Common = 6, false, 0 },
			"the effective batch grows, so each rank has some multiple of 8 samples per step, which is not always a multiple of the micro-batch; the nearest micro-batches that keep the effective batch are 4 and 8"},
		{two + "--micro 12 --global 96 --rampup 32 16 50000", micros(4), "grows from 32 in steps of 16 to 96, and micro-batch 12 × 2 ranks does not divide all of these sizes"},
		{two + "--micro 8 --rampup 32 16 50000", micros(4), "needs --global, the size that the effective batch grows to"},
		{two + "--micro 8 --accum 6 --global 96 --rampup 32 16 50000", micros(4), "and cannot be combined with accumulation"},
		{two + "--micro 8 --global 96 --rampup 32", micros(4), "must be START INCREMENT SAMPLES"},
		{two + "--micro 8 --global 96 --rampup 32 16", micros(4), "must be START INCREMENT SAMPLES"},
		{two + "--micro 8 --global 96 --rampup 32 16 50000 4", micros(4), "must be START INCREMENT SAMPLES"},
		{two + "--micro 8 --global 96 --rampup 32 x 5", micros(4), "must be START INCREMENT SAMPLES"},
	} {
		got := rewritten(t, p, c.command, c.change, nil)
		if got != c.want && (!strings.Contains(got, c.want) || strings.HasPrefix(c.want, "t.py")) {
			t.Errorf("%s: %s, want %s", c.command, got, c.want)
		}
	}
}

// TestDerivedAccumulation checks what happens to the effective batch if the framework
// computes the accumulation. If the effective batch is given, it is kept; if not, Rewrite
// adds the flag that fixes it at its present value. If it cannot be fixed, or the given
// one does not divide evenly, To returns an error.
func TestDerivedAccumulation(t *testing.T) {
	const head = "name: derived\nmatch: {flags: [--micro]}\nknobs:\n  micro: {flags: [--micro]}\n  global: {flags: [--global], unset: [\"-1\"]}\nlaw: {write: [micro], derive: accumulation"
	for _, c := range []struct{ law, command, want string }{
		{", pin: [global]}", "python t.py --micro 8 --global 32", "--micro 4 --global 32"},
		{", pin: [global]}", "python t.py --micro 8", "--micro 4 --global 8"},
		{", pin: [global]}", "python t.py --micro 8 --global -1", "--micro 4 --global 8"},
		{", pin: [global]}", "python t.py --micro 8 --global=-1", "--micro 4 --global=8"},
		{"}", "python t.py --micro 8", "global: --global: not given, so it would change with the micro-batch; give it"},
		{"}", "python t.py --micro 8 --global 36", "global: --global: 36: is not a multiple of micro-batch 8 × 1 ranks, so the batch actually trained has a different size"},
	} {
		p, err := profile.Parse("derived.yaml", []byte(head+c.law+"\n"))
		if err != nil {
			t.Fatal(err)
		}
		if got := rewritten(t, p, c.command, micros(4), nil); got != c.want {
			t.Errorf("%s: %s, want %s", c.command, got, c.want)
		}
	}
}

// TestRewriteIsReadBack checks that a rewritten command is read back: Rewrite notices that
// two knobs have the same flag.
func TestRewriteIsReadBack(t *testing.T) {
	p, err := profile.Plain([]string{"micro=--bs", "accumulation=--bs"})
	if err != nil {
		t.Fatal(err)
	}
	if got := rewritten(t, p, "python t.py --bs 8", micros(4), nil); !strings.Contains(got, "the rewritten command would instead train with micro-batch 16 × 16") {
		t.Error(got)
	}
}

// TestAccumulationIsNotAssumed checks that an accumulation that is not given and has no
// known default does not count as 1. A file that headroom does not read may set it.
func TestAccumulationIsNotAssumed(t *testing.T) {
	p, err := profile.Plain([]string{"micro=--bs", "accumulation=--accum"})
	if err != nil {
		t.Fatal(err)
	}
	if got := rewritten(t, p, "python t.py --bs 8", micros(4), nil); got != "accumulation: --accum: not given, and its default is not known; give it, even if it is 1" {
		t.Error(got)
	}
}

// TestFallbacks checks which of a profile's fallbacks may be used for a command.
func TestFallbacks(t *testing.T) {
	for _, c := range []struct {
		args      string
		allowed   []string
		host      string
		recompute bool
		err       string
	}{
		{"", nil, "no-pinning", false, ""},
		{"--dataloader_num_workers 4", nil, "no-pinning", false, ""},
		{"--dataloader_num_workers 4", []string{"no-workers", profile.Recompute}, "no-pinning no-workers", true, ""},
		{"", []string{"no-workers"}, "no-pinning", false, ""},
		{"--dataloader_pin_memory False --gradient_checkpointing True", []string{profile.Recompute}, "", false, ""},
		{"", []string{"offload"}, "", false, "offload: the fallbacks of transformers are: recompute, no-pinning, no-workers"},
	} {
		m, err := Recognise(command.Line{Args: strings.Fields("python run_clm.py --per_device_train_batch_size 8 --output_dir out " + c.args), Dir: "/"}, profile.Builtin(), Given{})
		if err != nil {
			t.Fatal(err)
		}
		host, recompute, err := Fallbacks(m, c.allowed)
		if (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s %q: %v", c.args, c.allowed, err)
		}
		if got := strings.Join(host, " "); err == nil && (got != c.host || recompute != c.recompute) {
			t.Errorf("%s %q: %s, %v; want %s, %v", c.args, c.allowed, got, recompute, c.host, c.recompute)
		}
	}
}

// TestResumeBySwitch checks that a flag for resuming gets no path if the script declares
// it as a switch.
func TestResumeBySwitch(t *testing.T) {
	for declared, want := range map[string]string{
		`p.add_argument("--resume", action="store_true")`:                       "--bs 4 --acc 2 --resume",
		`p.add_argument('-r', '--resume', help='go on', action = 'store_true')`: "--bs 4 --acc 2 --resume",
		`p.add_argument("--resume", default="")`:                                "--bs 4 --acc 2 --resume step-7.pt",
		`p.add_argument("--quick", action="store_true")`:                        "--bs 4 --acc 2 --resume step-7.pt",
	} {
		m, err := Recognise(command.Line{Args: strings.Fields("python t.py --bs 8 --acc 1"), Dir: "/work"}, nil, Given{Files: fstest.MapFS{"work/t.py": {Data: []byte(declared + "\n")}}, World: 1,
			Knobs: []string{"micro=--bs", "accumulation=--acc", "resume=--resume", "checkpoints=step-*.pt"}})
		if err != nil {
			t.Fatal(err)
		}
		asked, err := Asks(m)
		if err != nil {
			t.Fatal(err)
		}
		out, err := To(m, asked.Plan.WithMicro(4), Resume{From: "step-7.pt"})
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(out.Command.Args[2:], " "); got != want {
			t.Errorf("%s: %s, want %s", declared, got, want)
		}
		if looks := m.Profile.Resume.Mode == "auto"; looks == strings.Contains(want, "step-7") {
			t.Errorf("%s: the script looks for its checkpoint by itself: %v", declared, looks)
		}
	}
}

// TestDefaultOfTheScript checks that a default is read from the script only if the script
// declares it exactly once.
func TestDefaultOfTheScript(t *testing.T) {
	const once = "p.add_argument('--bs', type=int, default=16)\n"
	for script, want := range map[string]int{once: 16, once + once: 0, "p.add_argument('--bs', type=int)\n": 0} {
		m, err := Recognise(command.Line{Args: strings.Fields("python t.py --acc 1"), Dir: "/work"}, nil, Given{Files: fstest.MapFS{"work/t.py": {Data: []byte(script)}}, World: 1,
			Knobs: []string{"micro=--bs", "accumulation=--acc"}})
		if err != nil {
			t.Fatal(err)
		}
		if asked, err := Asks(m); asked.Plan.Micro != want || (err == nil) != (want > 0) {
			t.Errorf("%q: %v, %v", script, asked.Plan, err)
		}
	}
}
