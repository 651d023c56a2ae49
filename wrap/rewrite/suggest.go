package rewrite

import (
	"slices"
	"strings"

	"headroom/wrap/profile"
)

// Suggestions returns guesses at the knobs of a command, in the form that --knob accepts.
// The guesses are based on the names of the command's and the script's options, and are
// only shown to the user.
func Suggestions(m *Match) []string {
	if m.Launch.Name() == "." {
		return nil
	}
	names := optionsOf(m)
	var all []string
	for _, k := range []struct {
		knob       string
		has, hasNo []string
	}{
		{profile.Micro, []string{"batch", "bs", "bsz"}, []string{"eval", "valid", "val_batch_size", "test", "global", "total", "accum"}},
		{profile.Accumulation, []string{"accum"}, nil},
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
