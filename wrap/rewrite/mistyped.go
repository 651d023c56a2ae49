package rewrite

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/xrash/smetrics"
)

// optionsOf returns the names of the command's own options, and of those that its script
// declares through argparse. Overrides such as data.batch=8 count as options.
func optionsOf(m *Match) (names []string) {
	for _, arg := range m.own() {
		if name, _, _ := strings.Cut(arg, "="); len(name) > 2 && (strings.HasPrefix(name, "--") || name != arg) {
			names = append(names, name)
		}
	}
	for _, found := range declaration.FindAllSubmatch(m.script(), -1) {
		names = append(names, string(found[1]))
	}
	return names
}

var declaration = regexp.MustCompile(`add_argument\(\s*(?:["']-\w["']\s*,\s*)?["'](--[\w-]+)["']`)

// mistyped returns the error for a --knob that names an option which the command does not
// give and the script does not mention, if there is an option of nearly the same name. A
// knob that is needed only later, such as the one for resuming, would otherwise be missed
// only then.
func mistyped(m *Match) error {
	taken := map[string]bool{}
	for _, knob := range m.Given.Knobs {
		_, place, _ := strings.Cut(knob, "=")
		taken[place] = true
	}
	for _, knob := range m.Given.Knobs {
		name, place, _ := strings.Cut(knob, "=")
		place, _, _ = strings.Cut(place, "@")
		if name == "checkpoints" || strings.HasPrefix(place, "$") {
			continue
		}
		if at, err := m.find(m.Profile, m.files, name); err != nil || at.kind != absent || mentions(m, place) {
			continue
		}
		all := slices.DeleteFunc(optionsOf(m), func(option string) bool { return taken[option] })
		if at := slices.IndexFunc(all, func(option string) bool { return alike(place, option) }); at >= 0 {
			return &KnobError{name, place, "", fmt.Sprintf("not an option of the command, which has %s; did you mean --knob %s=%[1]s?", all[at], name)}
		}
	}
	return nil
}

// mentions reports whether the script knows an option. One that declares none through argparse
// may have a library that makes options from the names of parameters, with - in place of _.
func mentions(m *Match, option string) bool {
	script := m.script()
	if bytes.Contains(script, []byte(option)) {
		return true
	}
	bare := []byte(strings.ReplaceAll(strings.TrimLeft(option, "-"), "-", "_"))
	return !declaration.Match(script) && bytes.Contains(script, bare)
}

// alike reports whether one of two options is probably the other, mistyped.
func alike(a, b string) bool {
	bare := func(option string) string {
		return strings.ToLower(strings.NewReplacer("-", "", "_", "").Replace(option))
	}
	if strings.HasPrefix(a, "-") != strings.HasPrefix(b, "-") {
		return false
	}
	return bare(a) == bare(b) || smetrics.WagnerFischer(bare(a), bare(b), 1, 1, 2) <= len(bare(a))/4
}
