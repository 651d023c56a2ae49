package main

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"headroom/cmd/headroom/ui"
	"headroom/configs"
	"headroom/spelling"
)

// newApp returns headroom's command line. The help, the manual page and the
// completion scripts are generated from it.
func newApp(u *ui.UI) *cli.App {
	app := &cli.App{
		Name:                  "headroom",
		Usage:                 "run a training job to completion in whatever GPU memory there is",
		UsageText:             appUsage,
		Version:               readBuild().String(),
		Description:           appDescription,
		CustomAppHelpTemplate: appHelp,
		Commands: []*cli.Command{
			runCommand(u), explainCommand(u), checkCommand(u), initCommand(u), resumeCommand(u), findCommand(u), doctorCommand(u), statusCommand(u), reportCommand(u), notifyCommand(u),
			profilesCommand(u), configCommand(u), kernelCommand(u), versionCommand(u), completionCommand(u), manCommand(u), helpCommand(),
		},
		Flags:                     []cli.Flag{cli.HelpFlag}, // the library adds this flag only along with its own help command
		Writer:                    u.Out,
		ErrWriter:                 io.Discard, // every message goes through ui
		EnableBashCompletion:      true,
		DisableSliceFlagSeparator: true, // --set data.files=[a,b] is one value
		ExitErrHandler:            func(*cli.Context, error) {},
		OnUsageError:              usageFault,
		Action:                    func(c *cli.Context) error { return noCommand(u, c) },
		BashComplete:              completeCommands,
	}
	for _, command := range app.Commands {
		command.OnUsageError = usageFault
		command.HideHelpCommand = true // "headroom run help" is a run named help
		if command.CustomHelpTemplate == "" {
			command.CustomHelpTemplate = commandHelp
		}
		if command.BashComplete == nil {
			command.BashComplete = completeFlags(command)
		}
	}
	cli.VersionPrinter = func(c *cli.Context) { _ = u.Answer(c.App.Version) }
	return app
}

const (
	appUsage = `headroom run -- COMMAND	run your training command, like python train.py
headroom explain -- COMMAND	show what headroom would do, and start nothing
headroom run gpt	try a demo that needs neither a GPU nor PyTorch`

	appDescription = `If a PyTorch step runs out of GPU memory, headroom runs it again in pieces, and
training continues. Where that would not be exact, COMMAND starts again from its
newest checkpoint, with a smaller micro-batch and more accumulation.`
)

// printHelp prints a page of help: template, filled in with data. The templates call functions for
// whatever takes time to format, because most invocations of headroom print no help.
func printHelp(w io.Writer, template string, data any) {
	cli.HelpPrinterCustom(w, template, data, map[string]any{"flag": flagHelp, "statuses": ui.ExitHelp})
}

// The templates of the help show what the library's own templates show, and the exit statuses.
// Every page fits on a screen and begins with what most people want. The manual has the rest.
const (
	appHelp = `headroom: {{.Usage}}

USAGE:
{{indent 3 .UsageText}}

{{.Description}}

COMMANDS:{{range .VisibleCommands}}
   {{.Name}}{{"\t"}}{{.Usage}}{{end}}

EXIT STATUS:
{{statuses "` + ui.PassedOn + `"}}
"headroom run --help" says more about run; every command has such a page.
`
	// The library sorts categories and their flags by name; here they keep their order.
	commandHelp = `{{.HelpName}}: {{.Usage}}

USAGE:
{{if .UsageText}}{{indent 3 .UsageText}}{{else}}   {{.HelpName}}{{if .VisibleFlags}} [FLAGS]{{end}}{{if .ArgsUsage}} {{.ArgsUsage}}{{end}}{{end}}
{{if .Description}}
{{.Description}}
{{end}}{{$group := "none yet"}}{{range .VisibleFlags}}{{if ne .GetCategory $group}}{{$group = .GetCategory}}
FLAGS{{if $group}} FOR {{$group}}{{end}}:
{{end}}   {{flag .}}
{{end}}`
)

// jobHelp returns the help template of a headroom command that runs training. lead is the first
// sentence of its section about the exit status.
func jobHelp(lead string) string {
	return commandHelp + "\nEXIT STATUS:\n" + fmt.Sprintf("{{statuses %q}}", lead)
}

func helpCommand() *cli.Command {
	return &cli.Command{
		Name:      "help",
		Usage:     "show help for headroom or one of its commands",
		ArgsUsage: "[COMMAND]",
		Action: func(c *cli.Context) error {
			root := c.Lineage()[1]
			name := c.Args().First()
			if name == "" {
				return cli.ShowAppHelp(root)
			}
			if c.App.Command(name) == nil {
				return unknownCommand(c, name)
			}
			return cli.ShowCommandHelp(root, name)
		},
	}
}

// noCommand handles a command line that names none of headroom's commands. It returns a
// usage error, because an exit status of 0 would mean that something was done. If the
// command line has no words at all, noCommand prints the help first.
func noCommand(u *ui.UI, c *cli.Context) error {
	if name := c.Args().First(); name != "" {
		return unknownCommand(c, name)
	}
	c.App.Writer = u.Screen.Writer
	if err := cli.ShowAppHelp(c); err != nil {
		return err
	}
	return ui.Usagef("", "no command was named")
}

func unknownCommand(c *cli.Context, name string) error {
	hint := `"headroom help" lists the commands`
	var names []string
	for _, command := range c.App.Commands {
		names = append(names, command.Name)
	}
	if near := spelling.Nearest(name, names); near != "" {
		hint = fmt.Sprintf("did you mean %q?", "headroom "+near)
	}
	return ui.Usagef(hint, "unknown command %q", name)
}

// usageFault turns an error of the flag parser into a usage error in headroom's own words.
func usageFault(c *cli.Context, err error, _ bool) error {
	text := err.Error()
	if name, ok := strings.CutPrefix(text, "flag provided but not defined: -"); ok {
		name = strings.TrimLeft(name, "-")
		hint := fmt.Sprintf("%q lists the flags", strings.TrimSpace(c.Command.HelpName+" --help"))
		var names []string
		for _, f := range c.Command.Flags {
			names = append(names, f.Names()...)
		}
		switch near := spelling.Nearest(name, names); {
		case near != "":
			hint = fmt.Sprintf("did you mean %s?", dashed(near))
		case slices.Contains(takeCommands, c.Command.Name) && ownCommand(c):
			hint = fmt.Sprintf("your own command goes after --, as in %s -- python train.py", c.Command.HelpName)
		}
		return ui.Usagef(hint, "unknown flag %s", dashed(name))
	}
	if wrong := valueFault(c, text); wrong != nil {
		return wrong
	}
	return &ui.UsageError{Err: errors.New(strings.NewReplacer("flag -", "flag --", "for -", "for --").Replace(text))}
}

// ownCommand reports whether the user seems to have forgotten the -- before their own command.
// That is so if, among the words after headroom's command, the first that is not a flag does
// not name a configuration.
func ownCommand(c *cli.Context) bool {
	words := c.Lineage()[1].Args().Tail() // the parser failed at a flag, so the command's own context has no words yet
	at := slices.IndexFunc(words, func(word string) bool { return !isFlag(word) })
	return at >= 0 && !slices.Contains(configs.Presets(), words[at]) && !slices.Contains([]string{".yaml", ".yml"}, filepath.Ext(words[at]))
}

func noArguments(c *cli.Context) error {
	if c.Args().Present() {
		return ui.Usagef("", "%s takes no arguments, got %q", c.Command.Name, c.Args().First())
	}
	return nil
}

// oneArgument returns the argument of a command that takes exactly one. If there are none or
// several, it returns a usage error with the given hint. what describes the argument in that
// error.
func oneArgument(c *cli.Context, what, hint string) (string, error) {
	switch c.Args().Len() {
	case 1:
		return c.Args().First(), nil
	case 0:
		return "", ui.Usagef(hint, "%s needs %s", c.Command.Name, what)
	}
	return "", ui.Usagef(hint, "%s takes one argument, not %d: %q", c.Command.Name, c.Args().Len(), c.Args().Slice())
}

func jsonFlag(usage string) cli.Flag { return boolFlag("json", usage) }

func boolFlag(name, usage string, aliases ...string) cli.Flag {
	return &cli.BoolFlag{Name: name, Aliases: aliases, Usage: usage, DisableDefaultText: true}
}
