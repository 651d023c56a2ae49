package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"headroom/cmd/headroom/ui"
	"headroom/configs"
	"headroom/notify"
	"headroom/runs"
)

// notifyKey is the environment variable with those who are told about every run, one in each line.
const notifyKey = "HEADROOM_NOTIFY"

// nobody is the value of --notify that tells nobody.
const nobody = "off"

func notifyFlag() cli.Flag {
	return &cli.StringSliceFlag{Name: "notify", Usage: "tell `WHO` how the run goes: a command, or a URL"}
}

// told returns who is to be told about a run: as the flags say, or else the file, or else the environment.
func told(c *cli.Context, file []string) ([]string, error) {
	given := file
	if isSet(c, "notify") {
		given = slices.Clone(c.StringSlice("notify"))
		for i, one := range given {
			if path, is := strings.CutPrefix(one, "@"); is { // a run that is resumed elsewhere finds it
				absolute, err := filepath.Abs(path)
				if err != nil {
					return nil, fmt.Errorf("--notify: %w", err)
				}
				given[i] = "@" + absolute
			}
		}
	}
	if given == nil {
		given = notify.Lines(os.Getenv(notifyKey))
	}
	return given, nil
}

// receivers returns those who are given, or a usage error if one of them cannot be told anything.
func receivers(given []string) ([]notify.Receiver, error) {
	if slices.Equal(given, []string{nobody}) {
		return nil, nil
	}
	given, err := notify.Expanded(given)
	if err != nil {
		return nil, ui.Usagef("write a file with a receiver in each line, or leave out @ to name a command", "--notify: %w", err)
	}
	var all []notify.Receiver
	for _, one := range given {
		r, err := notify.Parse(one)
		if err != nil {
			return nil, ui.Usagef("docs/notifications.md has an example for each service; any other can be reached by a command", "--notify: %w", err)
		}
		all = append(all, r)
	}
	return all, nil
}

// notifier returns what tells them about the run in dir, or nil if there is nobody to tell. The caller closes it.
func notifier(u *ui.UI, dir string, to []notify.Receiver) *notify.Notifier {
	if len(to) == 0 {
		return nil
	}
	before, _ := runs.ReadJournal(dir) // as far as it can be read; of a new run there is none
	host, _ := os.Hostname()           // only shown to people
	folder, err := filepath.Abs(dir)
	if err != nil {
		folder = dir
	}
	return notify.Start(notify.Options{Run: filepath.Base(folder), Host: host, Folder: folder, To: to, Since: notify.After(before),
		Summary: func() []string { return inBrief(u, dir) },
		Failed:  func(to notify.Receiver, err error) { u.NotTold(to.String(), err) }})
}

// inBrief returns the lines of a message about the run in dir.
func inBrief(u *ui.UI, dir string) []string {
	r, err := drawn(dir, "", u.Now())
	if err != nil {
		return nil
	}
	return r.Brief()
}

func notifyCommand(u *ui.UI) *cli.Command {
	return &cli.Command{
		Name:      "notify",
		Usage:     "send a test message to those who would be told about a run",
		ArgsUsage: "test [CONFIG]",
		Description: `headroom notify test --notify ntfy://TOPIC sends a message, and says what came
back. Without --notify, it goes to those in CONFIG, a file for "headroom run",
or else in the variable ` + notifyKey + `, one in each line.`,
		Flags:  []cli.Flag{notifyFlag()},
		Action: func(c *cli.Context) error { return notifyAction(u, c) },
	}
}

func notifyAction(u *ui.UI, c *cli.Context) error {
	words := c.Args().Slice()
	if len(words) == 0 || words[0] != "test" || len(words) > 2 {
		return ui.Usagef("headroom notify test --notify ntfy://TOPIC", "notify takes the word test, and at most one file")
	}
	var file []string
	if len(words) == 2 {
		var err error
		if file, err = fileNotifies(words[1]); err != nil {
			return ui.AsUsage(err)
		}
	}
	given, err := told(c, file)
	if err != nil {
		return err
	}
	to, err := receivers(given)
	if err != nil {
		return err
	}
	if len(to) == 0 {
		return ui.Usagef("headroom notify test --notify ntfy://TOPIC", "nobody is to be told")
	}
	host, _ := os.Hostname()
	return tryAll(c.Context, u, to, notify.Event{Kind: notify.Test, Run: "test", Host: host, Time: u.Now(), Text: "if you can read this, headroom can reach you from " + host})
}

// tryAll sends e to everybody, one after another, and says what came back.
func tryAll(ctx context.Context, u *ui.UI, to []notify.Receiver, e notify.Event) error {
	failed := 0
	for _, r := range to {
		limited, end := context.WithTimeout(ctx, notify.SendMost)
		said, err := r.Send(limited, e)
		end()
		if err != nil {
			failed++
			said = "not sent: " + err.Error()
		}
		if err := u.Answer(ui.Printable(fmt.Sprintf("%v: %s", r, said))); err != nil {
			return err
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %s got no message", failed, ui.Plural(len(to), "receiver"))
	}
	return nil
}

// fileNotifies returns who is told according to a file for headroom run, or to a preset.
func fileNotifies(path string) ([]string, error) {
	if configs.IsCommand(path) {
		command, err := configs.LoadCommand(path)
		if err != nil {
			return nil, err
		}
		return command.Notify, nil
	}
	cfg, err := configs.Load(path, nil)
	if err != nil {
		return nil, err
	}
	return cfg.Notify, nil
}
