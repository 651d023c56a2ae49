package rewrite

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"headroom/wrap/command"
	"headroom/wrap/profile"
)

// Given is what the user specified in addition to the command, and the file system from
// which files are read.
type Given struct {
	Files   fs.FS    // rooted at /; if nil, no files are read
	Profile string   // name of the profile to use, whatever the scores are; may be ""
	Knobs   []string // "micro=--batch-size"; see [profile.Plain]
	World   int      // number of data-parallel ranks; 0 means what the command says
}

// Match is a command and the profile that fits it.
type Match struct {
	Command command.Line
	Launch  command.Launch
	Profile profile.Profile
	Layers  []profile.Profile // profiles of what runs between the launcher and the framework, such as DeepSpeed
	Scores  []Score           // best first

	Given Given
	files []document   // configurations of Profile
	under [][]document // configurations of each of Layers
}

// Score is how well a profile fits a command.
type Score struct {
	Profile string   `json:"profile"`
	Points  int      `json:"points"`
	Reasons []string `json:"reasons,omitempty"` // what counted, and which configurations were ruled out
}

// A profile is chosen if it has enough points and leads the next one by this margin.
const (
	enough = 4
	margin = 2
)

// NotRecognisedError says that no profile fits a command well enough, or that two fit
// about equally well.
type NotRecognisedError struct {
	Reason string
	Scores []Score // best first
}

func (e *NotRecognisedError) Error() string {
	var b strings.Builder
	b.WriteString("not recognised: " + e.Reason)
	for _, s := range e.Scores {
		if s.Points > 0 || len(s.Reasons) > 0 {
			fmt.Fprintf(&b, "; %s %d (%s)", s.Profile, s.Points, strings.Join(s.Reasons, ", "))
		}
	}
	return b.String() + "; name a profile with --profile, or the knobs with --knob micro=FLAG --knob accumulation=FLAG"
}

// Recognise finds the profile that fits a command. Independent signals are scored. A
// profile needs at least 4 points, and 2 more than the next one. If no profile fits but g
// has knobs, the profile is made from those alone.
//
// The error is an [*command.OpaqueError] if the training command cannot be seen, and a
// [*NotRecognisedError] with the scores if no profile fits.
func Recognise(c command.Line, profiles []profile.Profile, g Given) (*Match, error) {
	launch, err := command.Peel(c)
	if err != nil {
		return nil, err
	}
	m := &Match{Command: c, Launch: launch, Given: g}
	for _, p := range profiles {
		if !p.Layer {
			m.Scores = append(m.Scores, score(m, p))
		}
	}
	slices.SortStableFunc(m.Scores, func(a, b Score) int { return b.Points - a.Points })
	name, err := choose(m, profiles)
	if err != nil && (len(g.Knobs) == 0 || g.Profile != "") {
		return nil, err
	}
	if m.Profile, err = named(m, name, profiles, err == nil); err != nil {
		return nil, err
	}
	m.files = documents(m, m.Profile)
	for _, p := range profiles {
		if p.Layer && accompanies(m, p) {
			m.Layers = append(m.Layers, p)
			m.under = append(m.under, documents(m, p))
		}
	}
	return m, nil
}

// choose returns the name of the profile to use.
func choose(m *Match, profiles []profile.Profile) (string, error) {
	if name := m.Given.Profile; name != "" {
		if !slices.ContainsFunc(profiles, func(p profile.Profile) bool { return p.Name == name && !p.Layer }) {
			var names []string
			for _, p := range profiles {
				if !p.Layer {
					names = append(names, p.Name)
				}
			}
			return "", &NotRecognisedError{Reason: profile.UnknownWord("profile "+name, name, names)}
		}
		return name, nil
	}
	switch {
	case len(m.Scores) == 0:
		return "", &NotRecognisedError{Reason: "there are no profiles"}
	case m.Scores[0].Points < enough:
		return "", &NotRecognisedError{"no profile fits well enough", m.Scores}
	case len(m.Scores) > 1 && m.Scores[0].Points-m.Scores[1].Points < margin:
		return "", &NotRecognisedError{fmt.Sprintf("the scores of %s and %s are less than %d points apart", m.Scores[0].Profile, m.Scores[1].Profile, margin), m.Scores}
	}
	return m.Scores[0].Profile, nil
}

// named returns the profile called name, with the user's knobs in place of its own. If no
// profile was recognised, the result has only the user's knobs.
func named(m *Match, name string, profiles []profile.Profile, recognised bool) (profile.Profile, error) {
	if !recognised {
		return plain(m)
	}
	at := slices.IndexFunc(profiles, func(p profile.Profile) bool { return p.Name == name })
	return profiles[at].WithKnobs(m.Given.Knobs)
}

// plain returns a profile that has only the user's knobs. If the script declares the flag
// for resuming as a switch, the flag gets no path: the script then looks for its newest
// checkpoint by itself.
func plain(m *Match) (profile.Profile, error) {
	p, err := profile.Plain(m.Given.Knobs)
	k, has := p.Knobs["resume"]
	isSwitch := func(flag string) bool { return len(declared(m, flag, `action\s*=\s*["']store_true["']`)) > 0 }
	if err != nil || !has || !slices.ContainsFunc(k.Flags, isSwitch) {
		return p, err
	}
	k.Type = profile.Switch
	p.Knobs["resume"] = k
	if p.Resume.Mode == "path" {
		p.Resume = profile.Continuation{Mode: "auto", Set: map[string]string{"resume": "true"}}
	}
	return p, nil
}

// score returns how well p fits the command: the sum of its signals' points.
func score(m *Match, p profile.Profile) Score {
	s := Score{Profile: p.Name}
	add := func(points int, format string, args ...any) {
		s.Points += points
		s.Reasons = append(s.Reasons, fmt.Sprintf("%+d ", points)+fmt.Sprintf(format, args...))
	}
	if programFits(p.Match, m.Launch) {
		add(3, "%s", m.Launch.Name())
	}
	for _, flag := range p.Match.Flags {
		if m.gives(flag) {
			add(2, "%s", flag)
			break
		}
	}
	for _, d := range documents(m, p) {
		if key := d.first(p.Match.Forbid); key != "" {
			s.Reasons = append(s.Reasons, fmt.Sprintf("%s has %s, so it is not this framework's configuration", d.name, key))
			continue
		}
		if keys := p.Match.Keys; len(keys) > 0 && d.all(keys) {
			add(2, "%s in %s", strings.Join(keys, ", "), d.name)
			break
		}
	}
	if word := imports(m, p.Match.Imports); word != "" {
		add(2, "%s imports %s", m.Launch.Script, word)
	}
	return s
}

// programFits reports whether l starts a program or a module that s names.
func programFits(s profile.Signals, l command.Launch) bool {
	for _, module := range s.Modules {
		if l.Module == module || strings.HasPrefix(l.Module, module+".") {
			return true
		}
	}
	return s.Argv != nil && l.Module == "" && s.Argv.MatchString(l.Name())
}

// gives reports whether the command gives the training program the flag.
func (m *Match) gives(flag string) bool {
	return slices.ContainsFunc(m.own(), func(arg string) bool {
		name, _, _ := strings.Cut(arg, "=")
		return name == flag
	})
}

// own returns the arguments of the training program, up to the first -- among them.
func (m *Match) own() []string { return m.Command.Args[m.Launch.First:m.end()] }

// end returns the position after the last argument that the training program may read as
// an option.
func (m *Match) end() int {
	for i := m.Launch.First; i < len(m.Command.Args); i++ {
		if m.Command.Args[i] == "--" {
			return i
		}
	}
	return len(m.Command.Args)
}

// accompanies reports whether the layer p is part of the command: whether the command
// names a configuration of p or sets one of p's knobs.
func accompanies(m *Match, p profile.Profile) bool {
	if len(documents(m, p)) > 0 {
		return true
	}
	for name := range p.Knobs {
		if at, err := m.find(p, nil, name); err != nil || at.kind != absent && at.kind != byDefault {
			return true
		}
	}
	return false
}

// imports returns the first of words that occurs in an import line of the script, or ""
// if none does.
func imports(m *Match, words []string) string {
	if len(words) == 0 || m.Launch.Script == "" {
		return ""
	}
	content, err := m.read(m.Launch.Script)
	if err != nil {
		return ""
	}
	lines := importLines(string(content))
	for _, word := range words {
		if slices.Contains(lines, word) {
			return word
		}
	}
	return ""
}

// importLines returns the names in the import statements of a script: the dotted names of
// modules, and the names imported from them.
func importLines(script string) []string {
	var names []string
	open := false
	for line := range strings.Lines(script) {
		line = strings.TrimSpace(line)
		if !open && !strings.HasPrefix(line, "import ") && !strings.HasPrefix(line, "from ") {
			continue
		}
		line, _, _ = strings.Cut(line, "#")
		names = append(names, strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune(" ,()\\\t", r) })...)
		open = (open || strings.Contains(line, "(")) && !strings.Contains(line, ")") || strings.HasSuffix(line, "\\")
	}
	return names
}
