package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v2"

	"headroom/cmd/headroom/ui"
	"headroom/configs"
	"headroom/runs"
)

// initFile is the file that headroom init writes unless told otherwise.
const initFile = "headroom.yaml"

func initCommand(u *ui.UI) *cli.Command {
	command := &cli.Command{
		Name:      "init",
		Usage:     `write a command and its settings to a file for "headroom run"`,
		ArgsUsage: "-- COMMAND",
		Description: `headroom init [FLAGS] -- COMMAND writes ` + initFile + `: the command and the
settings of the flags, each with its meaning. "headroom run ` + initFile + `" then
runs it; init itself starts nothing.`,
		Flags: append(append(knownFlags(), tendFlags()...),
			&cli.StringFlag{Name: "name", Usage: "name the run and its folder `NAME`"},
			&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Value: initFile, Usage: "write `FILE`"},
			notifyFlag(),
			boolFlag("force", "overwrite an existing file")),
		Action: func(c *cli.Context) error { return initAction(u, c) },
	}
	return command
}

func initAction(u *ui.UI, c *cli.Context) error {
	r, asked, err := commandRequest(c)
	if err != nil {
		return err
	}
	if !asked || r.file != "" {
		return ui.Usagef("headroom init -- python train.py", "init needs a command after --")
	}
	if !isSet(c, "notify") {
		r.Notify = nil // the environment's hold for this file, too, and have secrets
	}
	if r.Name != "" && !configs.IsName(r.Name) {
		return ui.Usagef("", "--name %s: not a valid name for a folder; allowed: %s", r.Name, configs.NamesAllowed)
	}
	w, err := recognised(r)
	if err != nil {
		return err
	}
	path := c.String("output")
	text, err := r.document(path, explained(w, u.Now()))
	if err != nil {
		return ui.AsUsage(err)
	}
	mode := os.FileMode(0o644)
	if _, secrets := runs.Masked(r.Args); len(secrets)+len(r.Notify) > 0 { // they have to be in it
		mode = 0o600
	}
	if err := writeNew(path, text, c.Bool("force"), mode); err != nil {
		return err
	}
	u.Say("written: %s", path)
	u.Hint(fmt.Sprintf("headroom run %s", path))
	return nil
}

// document returns the text of the file at path, which holds the command and the
// settings of r. What e says about them is added in comments. The paths in the
// text are relative to the file's folder.
func (r request) document(path string, e explanation) ([]byte, error) {
	folder, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	kept := r.Command
	if kept.Dir, err = filepath.Rel(folder, r.Dir); err != nil {
		return nil, err
	}
	if isProfileFile(kept.Profile) {
		if kept.Profile, err = filepath.Rel(folder, kept.Profile); err != nil {
			return nil, err
		}
		kept.Profile = "./" + kept.Profile // a file, not a name
	}
	notes := map[string][]string{
		"":        {fmt.Sprintf("headroom run %s runs this command. Flags on the command line override this file.", filepath.Base(path))},
		"profile": {e.recognisedBy()},
	}
	if e.Plan != nil {
		notes["command"] = []string{fmt.Sprintf("It asks for %v.", *e.Plan)}
	}
	if len(e.Suggest) > 0 {
		notes["knobs"] = []string{"The command line suggests " + strings.Join(e.Suggest, ", ") + "; check whether that is right."}
	}
	if e.Smaller != nil {
		for _, p := range e.Smaller.Prove {
			notes["trust"] = append(notes["trust"], "Here: "+p+".")
		}
	}
	return kept.Document(notes)
}

// recognisedBy says in one line how the command was recognised.
func (e explanation) recognisedBy() string {
	if e.Why != "" {
		return "Nothing would be changed: " + e.Why + "."
	}
	for _, s := range e.Scores {
		if s.Profile == e.Profile && s.Points > 0 {
			return fmt.Sprintf("Recognised: %s (%s).", e.Profile, strings.Join(s.Reasons, ", "))
		}
	}
	if e.Profile == "plain" {
		return "Not needed: the knobs below say everything."
	}
	return fmt.Sprintf("Treated as %s.", e.Profile)
}

// writeNew writes a new file or, with force, overwrites an existing one, which keeps its mode.
func writeNew(path string, text []byte, force bool, mode os.FileMode) error {
	how := os.O_CREATE | os.O_EXCL | os.O_WRONLY
	if force {
		how = os.O_CREATE | os.O_TRUNC | os.O_WRONLY
	}
	f, err := os.OpenFile(path, how, mode)
	if errors.Is(err, os.ErrExist) {
		return ui.Usagef("--force overwrites it, --output FILE writes a different file", "%s already exists", path)
	}
	if err != nil {
		return ui.AsUsage(fmt.Errorf("write the command: %w", err))
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write the command: %w", err)
	}
	return nil
}
