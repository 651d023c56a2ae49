package wrap

import (
	"regexp"
	"slices"
	"strings"
)

// suggestions returns guesses at the knobs of a command, in the form that --knob accepts.
// The guesses are based on the names of the command's and the script's options, and are
// only shown to the user.
func (m *Match) suggestions() []string {
	if m.Launch.Name() == "." {
		return nil
	}
	var names []string
	for _, arg := range m.own() {
		if name, _, _ := strings.Cut(arg, "="); len(name) > 2 && (strings.HasPrefix(name, "--") || name != arg) {
			names = append(names, name)
		}
	}
	if m.Launch.Script != "" {
		declared := regexp.MustCompile(`add_argument\(\s*(?:["']-\w["']\s*,\s*)?["'](--[\w-]+)["']`)
		if content, err := m.read(m.Launch.Script); err == nil {
			for _, found := range declared.FindAllSubmatch(content, -1) {
				names = append(names, string(found[1]))
			}
		}
	}
	var all []string
	for _, k := range []struct {
		knob       string
		has, hasNo []string
	}{
		{micro, []string{"batch", "bs", "bsz"}, []string{"eval", "valid", "val_batch_size", "test", "global", "total", "accum"}},
		{accumulation, []string{"accum"}, nil},
	} {
		at := slices.IndexFunc(names, func(name string) bool { return sounds(name, k.has) && !sounds(name, k.hasNo) })
		if at >= 0 {
			all = append(all, k.knob+"="+names[at])
		}
	}
	return all
}

func sounds(name string, like []string) bool {
	name = strings.ToLower(strings.TrimLeft(name, "-"))
	return slices.ContainsFunc(like, func(word string) bool {
		return name == word || len(word) > 3 && strings.Contains(name, word)
	})
}
