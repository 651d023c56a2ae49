package main

import (
	"strings"

	"github.com/urfave/cli/v2"

	"headroom/cmd/headroom/ui"
	"headroom/configs"
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
