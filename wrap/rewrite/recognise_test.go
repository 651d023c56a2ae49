package rewrite

import (
	"strings"
	"testing"
	"testing/fstest"

	"headroom/wrap/command"
	"headroom/wrap/profile"
)

// TestConfigurationOfACommand checks which files count as a command's configuration. A
// file that is the value of another option is never taken for a positional configuration.
// If the configuration has to be the only argument, a file next to other arguments does
// not count.
func TestConfigurationOfACommand(t *testing.T) {
	const head = "name: own\nmatch: {flags: [--data]}\nknobs: {micro: {flags: [--bs], paths: [bs], default: 2}, accumulation: {flags: [--acc], default: 1}}\nlaw: {write: [micro, accumulation]}\n"
	files := fstest.MapFS{"w/run.yaml": {Data: []byte("bs: 8\n")}, "w/data.yaml": {Data: []byte("bs: 3\n")}, "w/later.yaml": {Data: []byte("bs: 16\n")}}
	for _, c := range []struct {
		config, command string
		want            int
	}{
		{"{format: yaml, positional: true, sole: true}", "python t.py run.yaml", 8},
		{"{format: yaml, positional: true, sole: true}", "python t.py run.yaml --acc 1", 2},
		{"{format: yaml, positional: true}", "python t.py run.yaml --acc 1", 8},
		{"{format: yaml, positional: true}", "python t.py run.yaml --data data.yaml", 8},
		{"{format: yaml, positional: true}", "python t.py run.yaml later.yaml --data=data.yaml", 16},
		{"{format: yaml, flags: [--config]}", "python t.py --config run.yaml --config=later.yaml", 16},
		{"{format: yaml, flags: [--config]}", "python t.py --config run.yaml --bs 5", 5},
		{"{format: yaml, flags: [--config]}", "python t.py --config --bs 5", 5},
		{"{format: yaml, flags: [--config]}", "python t.py --config none.yaml", 0}, // no default either: the file may set it
		{"{format: yaml, flags: [--config]}", "python t.py --config none.yaml --bs 5", 5},
	} {
		p, err := profile.Parse("own.yaml", []byte(head+"config: "+c.config+"\n"))
		if err != nil {
			t.Fatal(err)
		}
		m, err := Recognise(command.Line{Args: strings.Fields(c.command), Dir: "/w"}, []profile.Profile{p}, Given{Files: files, Profile: "own"})
		if err != nil {
			t.Fatal(err)
		}
		if asked, err := Asks(m); (err != nil) != (c.want == 0) || asked.Plan.Micro != c.want {
			t.Errorf("%s, %s: %v, %v, want micro-batch %d", c.config, c.command, asked.Plan, err, c.want)
		}
	}
}

// FuzzPlan checks that every plan that a built-in profile finds in a command is valid.
func FuzzPlan(f *testing.F) {
	f.Add("env A=b torchrun --nproc-per-node=2 -- train.py --x")
	f.Add("python train.py --per_device_train_batch_size=8 --gradient_accumulation_steps 2")
	f.Add("deepspeed --include localhost:0,1 --module m")
	f.Fuzz(func(t *testing.T, line string) {
		c := command.Line{Args: strings.Fields(line), Dir: "/"}
		l, err := command.Peel(c)
		if err != nil {
			return
		}
		m := Match{Command: c, Launch: l}
		for _, p := range profile.Builtin() {
			m.Profile, m.files = p, documents(&m, p)
			if asked, err := Asks(&m); err == nil {
				if err := asked.Plan.Validate(); err != nil {
					t.Fatalf("%q: %v", c.Args, err)
				}
			}
		}
	})
}
