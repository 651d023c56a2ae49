package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/urfave/cli/v2"

	"headroom/configs"
	"headroom/job"
	"headroom/runs"
)

// configFlags are the flags that apply only to a configuration, for the commands that take
// either a configuration or a wrapped command.
func configFlags() []cli.Flag { return []cli.Flag{setFlag(), unsetFlag()} }

// configRunFlags are the further flags of this kind that only the run command has.
func configRunFlags() []cli.Flag {
	return []cli.Flag{
		boolFlag("fresh", "set the run of that name aside, and start from step 0"),
		boolFlag("again", "start over if that run is finished; else continue it"),
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

// loadConfig reads the configuration that the command line asks for. Whatever
// is wrong with it is a usage error.
func loadConfig(c *cli.Context) (*configs.Config, error) {
	path, err := oneArgument(c, "a configuration: a file or the name of a preset", configHint(c.Args().Len()))
	if err != nil {
		return nil, err
	}
	if configs.IsCommand(path) {
		return nil, usagef(fmt.Sprintf("headroom explain %s, or headroom run %[1]s", path), "%s holds a command, and %s takes the configuration of a run", path, c.Command.Name)
	}
	if filepath.Ext(path) == ".py" {
		return nil, usagef(fmt.Sprintf("headroom %s -- python %s", c.Command.Name, path), "%s is a Python script; without --, %s takes a configuration", path, c.Command.Name)
	}
	sets := c.StringSlice("set")
	if isSet(c, "name") {
		sets = append(sets, "name="+c.String("name"))
	}
	cfg, err := configs.Load(path, sets, c.StringSlice("unset")...)
	return cfg, asUsage(err)
}

// keptConfig is the configuration of the run in dir. The error wraps
// fs.ErrNotExist if there is no run.
func keptConfig(dir string) (*configs.Config, error) {
	path := filepath.Join(dir, "run.yaml")
	if _, err := os.Stat(path); err != nil {
		return nil, err
	}
	return configs.Load(path, nil)
}

// goOn takes the values that cfg leaves open from the run that is in its folder, and
// refuses to continue that run if cfg describes a different one.
func goOn(cfg *configs.Config) error {
	old, err := keptConfig(cfg.RunDir())
	if missing(err) {
		return nil
	}
	if err != nil {
		return usagef("--fresh sets that folder aside and starts over", "the run in %s cannot be read: %w", cfg.RunDir(), err)
	}
	if different := configs.Diff(old, cfg); len(different) > 0 {
		return otherRun(cfg, different)
	}
	cfg.Inherit(old)
	return nil
}

// makeWay sets the run in cfg's folder aside if the flags ask for that, and
// returns the run's new place, "" if it stays.
func makeWay(cfg *configs.Config, fresh, again bool) (string, error) {
	dir := cfg.RunDir()
	if again && !fresh {
		s, err := runs.ReadStatus(dir)
		if err != nil && !missing(err) {
			return "", asUsage(err)
		}
		fresh = s.State == runs.StateDone
	}
	if !fresh {
		return "", nil
	}
	to, err := runs.SetAside(dir)
	return to, asUsage(err)
}

// openFolder makes the folder of runs, and opens the run's own folder in it.
func openFolder(cfg *configs.Config) (*runs.Folder, error) {
	if err := os.MkdirAll(cfg.Output.Dir, 0o755); err != nil {
		return nil, asUsage(fmt.Errorf("make the folder of runs: %w", err))
	}
	f, err := runs.Open(cfg.RunDir())
	return f, asUsage(err)
}

// opened is cfg with its data.
func opened(cfg *configs.Config) (*job.Job, error) {
	j, err := job.Open(cfg)
	return j, asUsage(err)
}

// openJob reads the data and makes the run's folder ready for it. Nothing is
// written before the data is known to be good.
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
	// goOn checked before this process held the folder. Since then another process may
	// have finished a different run in it.
	if err := goOn(j.Config); err != nil {
		return nil, nil, errors.Join(err, folder.Close())
	}
	if err := folder.SetConfig(text); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("write run.yaml: %w", err), folder.Close())
	}
	return j, folder, nil
}

// deviceName is the device called name or, if no name is known, what the configuration says
// about the device: "" for auto.
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
