package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v2"

	"headroom/cmd/headroom/ui"
	"headroom/configs"
	"headroom/job"
	"headroom/runs"
)

func configCommand(u *ui.UI) *cli.Command {
	command := &cli.Command{
		Name:      "config",
		Usage:     "print a preset or another configuration",
		ArgsUsage: "show CONFIG",
		Description: `headroom config show gpt > my.yaml makes a preset your own: it is printed as it
was written, with its comments. With --set or --unset, the configuration that
would be run is printed, every key with its value. Without an argument, the
presets are listed.`,
		Flags:  []cli.Flag{setFlag(), unsetFlag()},
		Action: func(c *cli.Context) error { return configAction(u, c) },
	}
	command.BashComplete = completeShow(command, configs.Presets)
	return command
}

func configAction(u *ui.UI, c *cli.Context) error {
	words := c.Args().Slice()
	switch {
	case len(words) == 0:
		return u.Answer(strings.Join(configs.Presets(), "\n"))
	case words[0] != "show":
		return ui.Usagef("headroom config show "+words[0], "config has no command %q", words[0])
	case len(words) != 2:
		return ui.Usagef(`"headroom config" lists the presets`, "config show needs one file, or the name of a preset")
	}
	show := configs.Text
	if isSet(c, "set") || isSet(c, "unset") {
		show = func(path string) ([]byte, error) {
			return resolved(path, c.StringSlice("set"), c.StringSlice("unset"))
		}
	}
	text, err := show(words[1])
	if err != nil {
		return ui.AsUsage(err)
	}
	return u.Answer(strings.TrimRight(string(text), "\n"))
}

// resolved returns the configuration that would be run, as YAML with every key and its value.
func resolved(path string, sets, unset []string) ([]byte, error) {
	cfg, err := configs.Load(path, sets, unset...)
	if err != nil {
		return nil, err
	}
	return cfg.YAML()
}

// configFlags returns the flags that apply only to a configuration. The headroom commands that
// take either a configuration or the user's command have these flags.
func configFlags() []cli.Flag { return []cli.Flag{setFlag(), unsetFlag()} }

// configRunFlags returns those flags of headroom run that apply only to a configuration and
// that no other headroom command has.
func configRunFlags() []cli.Flag {
	return []cli.Flag{
		boolFlag("fresh", "set any run of the same name aside; start from step 0"),
		boolFlag("again", "start over if the run is finished; else continue it"),
		boolFlag("json", "print journal entries and steps as JSON lines on stdout"),
		boolFlag("no-progress", "do not show progress"),
	}
}

func quietFlag() cli.Flag { return boolFlag("quiet", "print only warnings and errors", "q") }

func setFlag() cli.Flag {
	return &cli.StringSliceFlag{Name: "set", Usage: "`KEY=VALUE`: override a key, as in batch.micro=8; may be repeated"}
}

func unsetFlag() cli.Flag {
	return &cli.StringSliceFlag{Name: "unset", Usage: "drop `KEY`, so that its default applies; may be repeated"}
}

// loadConfig reads the configuration that the command line asks for. Every error that it
// returns is a usage error.
func loadConfig(c *cli.Context) (*configs.Config, error) {
	path, err := oneArgument(c, "a configuration: a file or the name of a preset", ui.ConfigHint(c.Command.Name, c.Args().Len()))
	if err != nil {
		return nil, err
	}
	if configs.IsCommand(path) {
		return nil, ui.Usagef(fmt.Sprintf("headroom explain %s, or headroom run %[1]s", path), "%s holds a command, but %s takes the configuration of a run", path, c.Command.Name)
	}
	if filepath.Ext(path) == ".py" {
		return nil, ui.Usagef(fmt.Sprintf("headroom %s -- python %s", c.Command.Name, path), "%s is a Python script; without --, %s takes a configuration", path, c.Command.Name)
	}
	sets := c.StringSlice("set")
	if isSet(c, "name") {
		sets = append(sets, "name="+c.String("name"))
	}
	cfg, err := configs.Load(path, sets, c.StringSlice("unset")...)
	return cfg, ui.AsUsage(err)
}

// keptConfig returns the configuration of the run in dir. If there is no run, the error
// wraps fs.ErrNotExist.
func keptConfig(dir string) (*configs.Config, error) {
	path := filepath.Join(dir, "run.yaml")
	if _, err := os.Stat(path); err != nil {
		return nil, err
	}
	return configs.Load(path, nil)
}

// goOn makes cfg continue the run in its folder, if there is one: values that cfg leaves
// open are taken from that run. If cfg describes a different run, goOn returns a usage error.
func goOn(cfg *configs.Config) error {
	old, err := keptConfig(cfg.RunDir())
	if missing(err) {
		return nil
	}
	if err != nil {
		return ui.Usagef("--fresh sets that folder aside and starts over", "the run in %s cannot be read: %w", cfg.RunDir(), err)
	}
	if different := configs.Diff(old, cfg); len(different) > 0 {
		return ui.OtherRun(cfg, different)
	}
	cfg.Inherit(old)
	return nil
}

// makeWay moves the run in cfg's folder aside if the flags --fresh and --again ask for
// that. It returns the run's new folder, or "" if the run stays where it is.
func makeWay(cfg *configs.Config, fresh, again bool) (string, error) {
	dir := cfg.RunDir()
	if again && !fresh {
		s, err := runs.ReadStatus(dir)
		if err != nil && !missing(err) {
			return "", ui.AsUsage(err)
		}
		fresh = s.State == runs.StateDone
	}
	if !fresh {
		return "", nil
	}
	to, err := runs.SetAside(dir)
	return to, ui.AsUsage(err)
}

// openFolder creates the folder of all runs if necessary, and opens the run's own folder in
// it.
func openFolder(cfg *configs.Config) (*runs.Folder, error) {
	if err := os.MkdirAll(cfg.Output.Dir, 0o755); err != nil {
		return nil, ui.AsUsage(fmt.Errorf("make the folder of runs: %w", err))
	}
	f, err := runs.Open(cfg.RunDir())
	return f, ui.AsUsage(err)
}

// opened is [job.Open], but every error is a usage error.
func opened(cfg *configs.Config) (*job.Job, error) {
	j, err := job.Open(cfg)
	return j, ui.AsUsage(err)
}

// openJob reads the data, then opens the run's folder and writes run.yaml into it. It
// writes nothing before it knows that the data is good.
func openJob(cfg *configs.Config) (*job.Job, *runs.Folder, error) {
	j, err := opened(cfg)
	if err != nil {
		return nil, nil, err
	}
	text, err := j.Config.YAML()
	if err != nil {
		return nil, nil, err
	}
	folder, err := openFolder(cfg)
	if err != nil {
		return nil, nil, err
	}
	kept, err := folder.Config()
	if err == nil && bytes.Equal(kept, text) {
		return j, folder, nil
	}
	// Check again: the first call of goOn came before this process held the folder. Since
	// then another process may have finished a different run in it.
	if err := goOn(j.Config); err != nil {
		return nil, nil, errors.Join(err, folder.Close())
	}
	if err := folder.SetConfig(text); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("write run.yaml: %w", err), folder.Close())
	}
	return j, folder, nil
}

// deviceName describes the device of a run by its name, capacity and precision. If name is "",
// it uses the kind of device that cfg asks for. If that is auto, it returns "".
func deviceName(cfg *configs.Config, name string) string {
	if name == "" && cfg.Device.Kind != "auto" {
		name = cfg.Device.Kind
	}
	if name == "" {
		return ""
	}
	if cfg.Device.Capacity > 0 {
		name = fmt.Sprintf("%s, %v", name, cfg.Device.Capacity)
	}
	if precision := cfg.Precision(); precision != "" {
		name += ", " + precision
	}
	return name
}
