package rewrite

import (
	"maps"
	"slices"
	"strings"

	"github.com/pmezard/go-difflib/difflib"

	"headroom/runs"
	"headroom/wrap/command"
)

// Diff returns a unified diff from was, the command before the rewrite, to r. It covers
// the command, with one option per line, and every file that is copied. It is empty if
// nothing changes.
func (r Result) Diff(was command.Line) string {
	parts := []string{unified("command", "command", lines(was, r.Command), lines(r.Command, was))}
	for _, c := range r.Copies {
		parts = append(parts, unified(c.From, c.Path, difflib.SplitLines(string(c.original)), difflib.SplitLines(string(c.Content))))
	}
	if r.Clone != nil {
		for _, name := range slices.Sorted(maps.Keys(r.Clone.Files)) {
			parts = append(parts, unified(r.Clone.From+"/"+name, r.Clone.Path+"/"+name,
				difflib.SplitLines(string(r.Clone.original[name])), difflib.SplitLines(string(r.Clone.Files[name]))))
		}
	}
	return strings.Join(parts, "")
}

func unified(from, to string, a, b []string) string {
	text, err := difflib.GetUnifiedDiffString(difflib.UnifiedDiff{A: a, B: b, FromFile: from, ToFile: to, Context: 2})
	if err != nil { // writing to a string does not fail
		panic("wrap: diff: " + err.Error())
	}
	return text
}

// lines returns the variables of c that other does not have, and the arguments of c. Each
// variable and each argument is a line, but an option and its value share one.
func lines(c, other command.Line) []string {
	var all []string
	for _, entry := range c.Env {
		if !slices.Contains(other.Env, entry) {
			all = append(all, command.Line{Args: []string{entry}}.String()+"\n")
		}
	}
	words := c.Masked()
	for i, arg := range words {
		option := i > 0 && strings.HasPrefix(words[i-1], "-") && !strings.Contains(words[i-1], "=") && !strings.HasPrefix(arg, "-")
		if option {
			all[len(all)-1] = strings.TrimSuffix(all[len(all)-1], "\n") + " " + runs.Shell(arg) + "\n"
			continue
		}
		all = append(all, runs.Shell(arg)+"\n")
	}
	return all
}
