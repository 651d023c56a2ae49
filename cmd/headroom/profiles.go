package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"headroom/cmd/headroom/ui"
	"headroom/spelling"
	"headroom/wrap/profile"
)

func profilesCommand(u *ui.UI) *cli.Command {
	command := &cli.Command{
		Name:      "profiles",
		Usage:     "list the profiles of training frameworks, or show one",
		ArgsUsage: "[show NAME]",
		Description: `headroom profiles lists them: the built-in ones, and your own, which are in
headroom/profiles below the configuration folder (~/.config).
headroom profiles show NAME prints the text of a profile; your own takes
precedence over a built-in one. NAME may also be the path of a file, which is
checked before it is printed.
docs/profiles.md describes the language.`,
		Action: func(c *cli.Context) error { return profilesAction(u, c) },
	}
	command.BashComplete = completeShow(command, profileNames)
	return command
}

func profilesAction(u *ui.UI, c *cli.Context) error {
	words := c.Args().Slice()
	switch {
	case len(words) == 0:
		return listProfiles(u)
	case words[0] != "show":
		return ui.Usagef(fmt.Sprintf("headroom profiles show %s", words[0]), "profiles has no command %q", words[0])
	case len(words) != 2:
		return ui.Usagef(`"headroom profiles" lists them`, "\"profiles show\" needs one profile's name")
	}
	all, name, err := profilesFor(words[1])
	if err != nil {
		return ui.AsUsage(err)
	}
	for _, p := range all {
		if p.Name == name {
			return u.Answer(fmt.Sprintf("# %s: %s\n%s", p.Name, sourceOf(p), strings.TrimRight(string(p.Text), "\n")))
		}
	}
	hint := `"headroom profiles" lists them`
	if near := spelling.Nearest(name, namesOf(all)); near != "" {
		hint = fmt.Sprintf("did you mean %q?", "headroom profiles show "+near)
	}
	return ui.Usagef(hint, "no profile %q", name)
}

// listProfiles prints the table of profiles.
func listProfiles(u *ui.UI) error {
	all, _, err := profilesFor("")
	if err != nil {
		return ui.AsUsage(err)
	}
	var b strings.Builder
	table(&b, func(w *tabwriter.Writer) {
		fmt.Fprintln(w, "PROFILE\tKIND\tRECOGNISED BY\tSOURCE")
		for _, p := range all {
			kind := "framework"
			if p.Layer {
				kind = "layer"
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", p.Name, kind, p.Signs(), sourceOf(p))
		}
	})
	return u.Answer(strings.TrimRight(ui.PrintableLines(b.String()), "\n"))
}

func sourceOf(p profile.Profile) string {
	if p.File == "" {
		return "built in"
	}
	return p.File
}

func namesOf(profiles []profile.Profile) []string {
	names := make([]string, len(profiles))
	for i, p := range profiles {
		names[i] = p.Name
	}
	return names
}

// profileNames returns the names of all profiles, or none if a profile cannot be read.
func profileNames() []string {
	all, _, err := profilesFor("")
	if err != nil {
		return nil
	}
	return namesOf(all)
}

// isProfileFile reports whether given is the path of a profile, not the name of one.
func isProfileFile(given string) bool { return strings.ContainsAny(given, "./") }

// profilesFor returns the profiles to choose from, the user's own before the built-in ones.
// If given is the path of a file, the profile in that file comes first, and name is that
// profile's name. Otherwise name is given.
func profilesFor(given string) (all []profile.Profile, name string, err error) {
	all = profile.Builtin()
	if config, err := os.UserConfigDir(); err == nil {
		folder := filepath.Join(config, "headroom")
		own, err := profile.Load(os.DirFS(folder), "profiles")
		if err != nil && !missing(err) {
			return nil, "", err
		}
		for i := range own {
			own[i].File = filepath.Join(folder, own[i].File)
		}
		all = profile.Over(own, all)
	}
	if !isProfileFile(given) {
		return all, given, nil
	}
	one, err := profile.Load(os.DirFS(filepath.Dir(given)), filepath.Base(given))
	if err != nil {
		return nil, "", err
	}
	if len(one) != 1 {
		return nil, "", fmt.Errorf("read profile: %s: %s in that folder; name a file", given, ui.Plural(len(one), "profile"))
	}
	one[0].File = given
	return profile.Over(one, all), one[0].Name, nil
}
