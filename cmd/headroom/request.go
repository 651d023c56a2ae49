package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"headroom/cmd/headroom/ui"
	"headroom/configs"
	"headroom/memory"
	"headroom/runs"
	"headroom/wrap/nodes"
	"headroom/wrap/profile"
)

// commandKey is the key under which main puts the words after "--" into the context.
type commandKey struct{}

// wordsOf returns the words of the user's command after "--", or nil if there is no "--".
func wordsOf(c *cli.Context) []string {
	words, _ := c.Context.Value(commandKey{}).([]string)
	return words
}

// wrapFlags returns the flags of headroom run that apply only to the user's command.
func wrapFlags() []cli.Flag {
	return append(append(knownFlags(), tendFlags()...),
		&cli.StringFlag{Name: "node", Usage: "`R/N`: node R of N, each with its own headroom; auto; or off"},
		&cli.DurationFlag{Name: "node-gone", Value: nodes.DefaultGone, Usage: "end the run if another node is silent for `TIME`"},
		boolFlag("dry-run", "show what a smaller micro-batch changes; start nothing"))
}

// knownFlags returns the flags by which the user says how headroom is to understand the command.
func knownFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringSliceFlag{Name: "knob", Usage: "`NAME=FLAG`: which FLAG of COMMAND sets NAME, as in micro=--batch-size"},
		&cli.StringFlag{Name: "profile", Usage: "how to read COMMAND: the name of a profile, or a `FILE`"},
		&cli.IntFlag{Name: "world", Usage: "`N` data-parallel ranks, if COMMAND does not say how many"},
		boolFlag("trust", "assume what headroom cannot prove about COMMAND"),
	}
}

// tendFlags returns the flags that say how headroom looks after the command.
func tendFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "free", Usage: "wait until COMMAND's GPUs each have `SIZE` free, as in 60GiB"},
		&cli.DurationFlag{Name: "hang", Value: configs.DefaultHang, Usage: "warn after `TIME` without a sign of life; 0 turns this off"},
		boolFlag("watch-only", "never change or restart COMMAND; implies --observe"),
		boolFlag("observe", "only watch inside PyTorch, and run no step in pieces"),
		boolFlag("no-worker", "keep the worker out of COMMAND's processes"),
		boolFlag("restart-hung", "if COMMAND hangs, restart it from its newest checkpoint"),
		boolFlag("restart-leaking", "if COMMAND leaks memory, restart it from a new checkpoint"),
		&cli.StringFlag{Name: "spill", Usage: "`SIZE|off`: memory of the host for what does not fit on a GPU"},
		&cli.StringFlag{Name: "micro", Usage: "`N|auto`: rows to run at once at most; auto finds the number"},
		boolFlag("snapshot", "write PyTorch's memory snapshot at the first failure"),
		&cli.StringFlag{Name: "trackers", Usage: "`wandb|mlflow|off`: whose open run a restart continues"},
		&cli.StringSliceFlag{Name: "allow", Usage: "allow the profile's fallback `NAME`, such as recompute"},
	}
}

// request is the user's command with its settings, from the command line or from a file;
// flags win over the file.
type request struct {
	configs.Command
	flags []string      // the values of --knob
	file  string        // the file that holds the command; "" if the command comes after --
	node  string        // which of several nodes this is: the value of --node
	gone  time.Duration // how long another node may be silent
}

// commandRequest returns the user's command that the command line asks for, either after --
// or in a file. asked is false if the command line asks for something else.
func commandRequest(c *cli.Context) (r request, asked bool, err error) {
	words := wordsOf(c)
	if words == nil { // a file may have to be opened
		if err := enoughFiles(); err != nil {
			return r, true, err
		}
	}
	switch {
	case words != nil && len(words) == 0:
		return r, true, ui.Usagef("headroom "+c.Command.Name+" -- python train.py", "there is no command after --")
	case words != nil && c.Args().Present():
		return r, true, ui.Usagef("give a configuration, or a command after --, not both; headroom's own flags go before --", "%q comes before --", c.Args().First())
	case words != nil:
		r.Args, r.Hang = words, configs.DefaultHang
		if r.Dir, err = os.Getwd(); err != nil {
			return r, true, ui.Usagef("cd into a folder that is there", "the working directory has been removed (%v)", err)
		}
	case c.Args().Len() == 1 && configs.IsCommand(c.Args().First()):
		r.file = c.Args().First()
		read, err := configs.LoadCommand(r.file)
		if err != nil {
			return r, true, ui.AsUsage(err)
		}
		r.Command = *read
		if r.Args, err = runs.Unmasked(filepath.Dir(r.file), read.Args); err != nil { // it may be a run's run.yaml
			return r, true, ui.Usagef("put the secret back into the file, or give the command after --", "%s: %w", r.file, err)
		}
	default:
		return r, false, nil
	}
	return r, true, r.override(c)
}

// neededCommand is [commandRequest] for a headroom command that always needs the user's command:
// it is a usage error if there is none.
func neededCommand(c *cli.Context) (request, error) {
	r, asked, err := commandRequest(c)
	if err == nil && !asked {
		err = ui.Usagef("headroom "+c.Command.Name+" -- python train.py", "%s needs a command after --, or a file with one", c.Command.Name)
	}
	return r, err
}

// notForCommands returns a usage error if one of flags is set, because these flags mean nothing for
// the user's command. purpose says what they are for, such as "a configuration".
func notForCommands(c *cli.Context, purpose string, flags []cli.Flag) error {
	for _, flag := range flags {
		if name := flag.Names()[0]; isSet(c, name) {
			return ui.Usagef("leave it out", "--%s is for %s, not for a command", name, purpose)
		}
	}
	return nil
}

// override applies the flags on the command line to r. They take precedence over settings that r
// has from a file. override returns a usage error if the settings do not fit together.
func (r *request) override(c *cli.Context) error {
	r.overrideKnobs(c.StringSlice("knob"))
	if isSet(c, "profile") {
		profile, err := absoluteProfile(c.String("profile"))
		if err != nil {
			return err
		}
		r.Profile = profile
	}
	r.node, r.gone = c.String("node"), nodes.DefaultGone
	given(c, "node-gone", &r.gone, c.Duration)
	given(c, "world", &r.World, c.Int)
	given(c, "trust", &r.Trust, c.Bool)
	given(c, "name", &r.Name, c.String)
	given(c, "watch-only", &r.WatchOnly, c.Bool)
	given(c, "observe", &r.Observe, c.Bool)
	given(c, "no-worker", &r.NoWorker, c.Bool)
	given(c, "allow", &r.Allow, c.StringSlice)
	given(c, "hang", &r.Hang, c.Duration)
	given(c, "restart-hung", &r.RestartHung, c.Bool)
	given(c, "restart-leaking", &r.RestartLeaking, c.Bool)
	given(c, "trackers", &r.Trackers, c.String)
	given(c, "snapshot", &r.Snapshot, c.Bool)
	given(c, "micro", &r.Micro, c.String)
	var err error
	if r.Notify, err = told(c, r.Notify); err != nil {
		return err
	}
	if err := r.overrideSizes(c); err != nil {
		return err
	}
	switch {
	case isSet(c, "world") && r.World < 1:
		return wrongValue("world", r.World, outOfRange)
	case r.Trackers != "" && !slices.Contains(configs.Trackers, r.Trackers):
		return wrongValue("trackers", r.Trackers, "not known")
	case r.Micro != "" && !configs.IsMicro(r.Micro):
		return wrongValue("micro", r.Micro, "not one of them")
	case r.gone < leastGone:
		return wrongValue("node-gone", r.gone, outOfRange)
	case r.Hang < 0:
		return wrongValue("hang", r.Hang, outOfRange)
	}
	return r.contradiction()
}

// overrideSizes applies the flags that give amounts of memory.
func (r *request) overrideSizes(c *cli.Context) error {
	if free := c.String("free"); isSet(c, "free") {
		var err error
		if r.Free, err = memory.Parse(free); err != nil || r.Free <= 0 {
			return notASize("free", free, err)
		}
	}
	if spill := c.String("spill"); isSet(c, "spill") {
		var most memory.Bytes
		if spill != "off" {
			var err error
			if most, err = memory.Parse(spill); err != nil || most <= 0 {
				return notASize("spill", spill, err)
			}
		}
		r.Spill = &most
	}
	return nil
}

// overrideKnobs adds the knobs on the command line, each in place of those of its name in the file.
func (r *request) overrideKnobs(flags []string) {
	r.flags = flags
	for _, knob := range flags {
		name, _, _ := strings.Cut(knob, "=")
		r.Knobs = slices.DeleteFunc(r.Knobs, func(other string) bool { return r.file != "" && strings.HasPrefix(other, name+"=") })
	}
	r.Knobs = append(r.Knobs, flags...)
}

// contradiction returns a usage error if two settings do not fit together, or a variable of the environment has a wrong value.
func (r *request) contradiction() error {
	if r.Micro == configs.Auto && r.Free > 0 {
		return ui.Usagef("give a number: --micro 8, or find it with headroom find when the memory is free", "--micro auto does not wait for the memory of --free")
	}
	unarmed := r.NoWorker || r.Observe || r.WatchOnly
	for _, c := range []struct {
		setting, beside string
		given, useless  bool
	}{
		{"--node-gone", "--node off", r.gone != nodes.DefaultGone, r.node == nodes.Off},
		{"--observe", "--no-worker", r.Observe, r.NoWorker},
		{"--restart-leaking", "--no-worker: it is the worker that sees a leak", r.RestartLeaking, r.NoWorker},
		{"--restart-leaking", "--watch-only", r.RestartLeaking, r.WatchOnly},
		{"--snapshot", "--no-worker", r.Snapshot, r.NoWorker},
		{"--spill", "--no-worker, --observe or --watch-only", r.Spill != nil, unarmed},
		{"--micro", "--no-worker, --observe or --watch-only", r.Micro != "", unarmed},
		{"--restart-hung", "--hang 0", r.RestartHung, r.Hang == 0},
		{"--restart-hung", "--watch-only", r.RestartHung, r.WatchOnly},
	} {
		if c.given && c.useless {
			return r.useless(c.setting, c.beside)
		}
	}
	return wrongEnvironment()
}

// useless returns the usage error for a setting that has no effect beside others. Either may be in the file.
func (r *request) useless(setting, beside string) error {
	hint := "leave out one of them"
	if r.file != "" {
		hint += ", in " + r.file + " or on the command line"
	}
	return ui.Usagef(hint, "%s has no effect with %s", setting, beside)
}

// wrongEnvironment returns a usage error if a variable that the worker reads has a value that it does not take.
func wrongEnvironment() error {
	wrong := func(name, allowed, example string) error {
		return ui.Usagef("for example "+name+"="+example+", or unset it", "%s=%s: not one of them; allowed: %s", name, os.Getenv(name), allowed)
	}
	spill, scalars := os.Getenv("HEADROOM_SPILL"), os.Getenv("HEADROOM_SCALARS")
	if _, err := strconv.ParseUint(spill, 10, 63); spill != "" && spill != "off" && err != nil {
		return wrong("HEADROOM_SPILL", "off, or a number of bytes", "68719476736")
	}
	for _, name := range strings.Split(scalars, ",") {
		if scalars != "" && name != "wandb" && name != "mlflow" {
			return wrong("HEADROOM_SCALARS", "wandb, mlflow or wandb,mlflow", "wandb")
		}
	}
	return nil
}

// isSet reports whether the user gave a flag. It replaces the context's own IsSet, which runs a
// regular expression over the name of every flag in each call. That would add 0.3 ms to each
// start.
func isSet(c *cli.Context, name string) bool { return slices.Contains(c.LocalFlagNames(), name) }

// given copies the value of a flag to *to if the user gave the flag.
func given[T any](c *cli.Context, name string, to *T, value func(name string) T) {
	if isSet(c, name) {
		*to = value(name)
	}
}

// absoluteProfile returns the value of --profile in a form that means the same in any folder:
// the path of a file is made absolute.
func absoluteProfile(given string) (string, error) {
	if !isProfileFile(given) {
		return given, nil
	}
	path, err := filepath.Abs(given)
	if err != nil {
		return "", fmt.Errorf("--profile: %w", err)
	}
	return path, nil
}

// placed returns err reworded for a command from a file: where err blames a --knob that the user
// did not give, it names the place in the file instead.
func (r request) placed(err error) error {
	if r.file == "" {
		return err
	}
	problems := []error{err}
	if joined := (interface{ Unwrap() []error })(nil); errors.As(err, &joined) {
		problems = joined.Unwrap()
	}
	var all []error
	for _, one := range problems {
		var p *profile.Error
		isFlag := errors.As(one, &p) && slices.ContainsFunc(r.flags, func(f string) bool { return strings.HasPrefix(f, p.Key+"=") })
		if p != nil && p.Where == "--knob" && !isFlag {
			at := *p
			at.Key = "knobs." + p.Key
			at.Where = r.At(at.Key)
			one = &at
		}
		all = append(all, one)
	}
	return errors.Join(all...)
}
