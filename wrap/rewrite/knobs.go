package rewrite

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"headroom/wrap/command"
	"headroom/wrap/profile"
)

// KnobError says that a knob cannot be read or set in a command.
type KnobError struct {
	Knob   string
	Where  string // where the knob is or can be set: "--batch-size", "train.yaml:12"; may be ""
	Value  string // the knob's value as it was written; "" if there is none
	Reason string
}

func (e *KnobError) Error() string {
	parts := []string{e.Knob}
	for _, part := range []string{e.Where, e.Value} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	return strings.Join(append(parts, e.Reason), ": ")
}

type placeKind int

const (
	absent placeKind = iota
	byDefault
	inFile
	inEnv
	inArgument
)

// place is the value of a knob in a command, and where the command sets it.
type place struct {
	kind    placeKind
	where   string // description for people
	text    string
	at, cut int       // index of the argument that holds the value, and the value's offset in it; at is -1 for a variable in Command.Env
	flag    int       // inArgument: the index of the argument with the flag
	bare    bool      // the flag has no value
	doc     *document // inFile
	path    string    // inFile
	unset   bool      // the value means that the knob is not set; text is the default
}

// find returns the place where a knob of p is set. Its kind is absent if the knob is not
// set and no default is known. The command line takes precedence over the environment,
// the environment over the configuration, and the configuration over the defaults.
func (m *Match) find(p profile.Profile, docs []document, name string) (place, error) {
	k, ok := p.Knobs[name]
	if !ok {
		return place{}, nil
	}
	at, err := inArguments(m, p, k, name)
	if err != nil || at.kind != absent {
		return at, err
	}
	if k.Launcher != "" {
		if o, ok := m.Launch.Option(k.Launcher); ok {
			return orDefault(k, place{kind: inArgument, where: "--" + k.Launcher, text: o.Value, at: o.At, cut: o.Cut, flag: o.At}), nil
		}
	}
	if value, ok := m.Launch.Getenv(m.Command, k.Env); ok && k.Env != "" {
		at, assigned := m.Launch.Assigned[k.Env]
		if !assigned {
			at = -1
		}
		return orDefault(k, place{kind: inEnv, where: k.Env, text: value, at: at, cut: len(k.Env) + 1}), nil
	}
	if at, err = inFiles(k, docs, name); err != nil || at.kind != absent {
		return at, err
	}
	if text := scriptDefault(m, k); text != "" {
		return place{kind: byDefault, where: "the default in " + m.Launch.Script, text: text}, nil
	}
	if k.Default != "" {
		return place{kind: byDefault, where: "the default", text: k.Default}, nil
	}
	return place{}, nil
}

// orDefault returns at. If the value there means that the knob is not set, the text is the
// knob's default.
func orDefault(k profile.Knob, at place) place {
	if slices.Contains(k.Unset, strings.Trim(at.text, `"'`)) {
		at.text, at.unset = k.Default, true
	}
	return at
}

// inArguments looks for a knob among the arguments of the training program. A flag that
// is given twice is an error, because it depends on the program which of its values takes
// effect.
func inArguments(m *Match, p profile.Profile, k profile.Knob, name string) (place, error) {
	var found []place
	for i := m.Launch.First; i < m.end(); i++ {
		at, ok, err := argument(m, p, k, i)
		if err != nil {
			return place{}, &KnobError{name, m.Command.Args[i], "", err.Error()}
		}
		if ok {
			found = append(found, at)
		}
	}
	switch len(found) {
	case 0:
		return place{}, nil
	case 1:
		return orDefault(k, found[0]), nil
	}
	return place{}, &KnobError{name, found[0].where, found[0].text, fmt.Sprintf("given %d times; give it once", len(found))}
}

// argument returns the place of a knob's value if argument i sets the knob, and whether
// it does.
func argument(m *Match, p profile.Profile, k profile.Knob, i int) (place, bool, error) {
	arg := m.Command.Args[i]
	name, value, given := strings.Cut(arg, "=")
	if p.Style == profile.HydraStyle && !strings.HasPrefix(arg, "-") && given && slices.Contains(k.Paths, strings.TrimLeft(name, "+")) {
		return place{kind: inArgument, where: name, text: value, at: i, cut: len(name) + 1, flag: i}, true, nil
	}
	for _, flag := range k.Flags {
		switch {
		case name == flag && given:
			return place{kind: inArgument, where: flag, text: value, at: i, cut: len(name) + 1, flag: i}, true, nil
		case name == flag:
			return valueBehind(m, p, k, flag, i)
		case len(flag) == 2 && k.Type == profile.Int && strings.HasPrefix(arg, flag) && command.Number(arg[2:]) > 0:
			return place{kind: inArgument, where: flag, text: arg[2:], at: i, cut: 2, flag: i}, true, nil
		}
	}
	if full := abbreviates(m, p, k, name); full != "" {
		return place{}, false, fmt.Errorf("may be short for %s; write it in full", full)
	}
	return place{}, false, nil
}

// valueBehind returns the place of the value of the flag at argument i. The value is the
// argument after the flag, several arguments if the knob is a list, or "true" for a
// switch.
func valueBehind(m *Match, p profile.Profile, k profile.Knob, flag string, i int) (place, bool, error) {
	at := place{kind: inArgument, where: flag, at: i + 1, flag: i}
	missing := i+1 >= m.end() || strings.HasPrefix(m.Command.Args[i+1], "-") && command.Number(m.Command.Args[i+1][1:]) == 0
	switch {
	case p.Style == profile.EqualsStyle:
		return place{}, false, fmt.Errorf("has no value; write %s=VALUE", flag)
	case k.Type == profile.Switch || missing && k.Type == profile.Bool:
		at.at, at.bare, at.text = i, true, "true"
		return at, true, nil
	case missing:
		return place{}, false, fmt.Errorf("has no value")
	}
	at.text = m.Command.Args[i+1]
	for j := i + 2; k.Type == profile.List && j < m.end() && command.Number(m.Command.Args[j]) > 0; j++ {
		at.text += "," + m.Command.Args[j]
	}
	return at, true, nil
}

// abbreviates returns the flag of k that name may be short for, or "" if there is none.
// argparse accepts the beginning of a long flag in place of the whole.
func abbreviates(m *Match, p profile.Profile, k profile.Knob, name string) string {
	if p.Style != profile.SpaceStyle || !strings.HasPrefix(name, "--") || len(name) < 5 {
		return ""
	}
	for _, other := range p.Knobs {
		if slices.Contains(other.Flags, name) {
			return ""
		}
	}
	for _, flag := range k.Flags {
		if strings.HasPrefix(flag, name) && k.Type == profile.Int && !m.gives(flag) {
			return flag
		}
	}
	return ""
}

// inFiles looks for a knob in the configuration files, beginning with the last one.
func inFiles(k profile.Knob, docs []document, name string) (place, error) {
	for i := len(docs) - 1; i >= 0; i-- {
		d := &docs[i]
		if d.err != nil && len(k.Paths) > 0 {
			return place{}, &KnobError{name, d.name, "", fmt.Sprintf("may be set in this file, which cannot be read: %v", d.err)}
		}
		for _, path := range k.Paths {
			value, ok, err := d.format.Find(d.content, path)
			if err != nil {
				return place{}, &KnobError{name, d.name, "", err.Error()}
			}
			if !ok {
				continue
			}
			at := place{kind: inFile, where: fmt.Sprintf("%s:%d", d.name, value.Line), text: value.Text, doc: d, path: path}
			if value.Null || slices.Contains(k.Unset, value.Text) {
				at.text, at.unset = k.Default, true
			}
			return at, nil
		}
	}
	return place{}, nil
}

// scriptDefault returns the default that the script declares for a flag of k through
// argparse, or "" if none can be found.
func scriptDefault(m *Match, k profile.Knob) string {
	if k.Type != profile.Int {
		return ""
	}
	for _, flag := range k.Flags {
		if all := declared(m, flag, `default\s*=\s*(\d+)\s*[,)]`); len(all) == 1 {
			return string(all[0][1])
		}
	}
	return ""
}

// declared returns the calls in the script that declare flag through argparse and also
// pass an option that matches the regular expression option. Each element holds the
// matched text, followed by the groups of the expression.
func declared(m *Match, flag, option string) [][][]byte {
	if m.Launch.Script == "" {
		return nil
	}
	content, err := m.read(m.Launch.Script)
	if err != nil {
		return nil
	}
	return regexp.MustCompile(`add_argument\([^()]*["']`+regexp.QuoteMeta(flag)+`["'][^()]*?\b`+option).FindAllSubmatch(content, -1)
}

// amount returns the value of a knob as a positive number, or 0 if the knob is not set
// and has no default.
func (m *Match) amount(p profile.Profile, docs []document, name string) (int, error) {
	at, err := m.find(p, docs, name)
	if err != nil || at.text == "" && (at.unset || at.kind < inEnv) {
		return 0, err
	}
	if at.text == "" {
		return 0, &KnobError{name, at.where, "", "present but empty; give a number"}
	}
	n, err := p.Knobs[name].Type.Amount(at.text)
	if err != nil {
		return 0, &KnobError{name, at.where, strconv.Quote(at.text), err.Error()}
	}
	return n, nil
}

// Text returns the value of a knob of the profile, or "" if it has none.
func (m *Match) Text(name string) (string, error) {
	at, err := m.find(m.Profile, m.files, name)
	return strings.Trim(at.text, `"'`), err
}

// Sets reports whether the command gives a knob a value, rather than leaving it at
// its default.
func (m *Match) Sets(name string) (bool, error) {
	at, err := m.find(m.Profile, m.files, name)
	return at.kind > byDefault && !at.unset, err
}

// Where returns where a knob can be written: its first flag, else its first key in the
// configuration, else its environment variable.
func (m *Match) Where(name string) string {
	k := m.Profile.Knobs[name]
	if len(k.Flags) > 0 {
		return k.Flags[0]
	}
	if len(k.Paths) > 0 {
		return k.Paths[0]
	}
	return k.Env
}
