package rewrite

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"headroom/recovery"
	"headroom/wrap/command"
	"headroom/wrap/edit"
	"headroom/wrap/profile"
)

// rewriter collects the changes to one command. Arguments keep their positions until the
// end, so that positions found earlier stay valid.
type rewriter struct {
	m      *Match
	prefix string // of the names of copies
	args   []string
	env    []string
	gone   []int                // positions of arguments to remove
	added  []string             // arguments to put after the training program's own
	texts  map[*document][]byte // contents of the configurations that have changed
	out    Result
}

// amount sets a knob that holds a number, in the notation of its present value.
func (w *rewriter) amount(p profile.Profile, docs []document, name string, n int) error {
	at, err := w.m.find(p, docs, name)
	if err != nil {
		return err
	}
	if old, err := p.Knobs[name].Type.Amount(at.text); err == nil && old == n && at.kind > byDefault {
		return nil
	}
	return w.set(p, docs, name, p.Knobs[name].Type.Write(n, at.text))
}

// set gives a knob a value. If an argument or a variable sets the knob already, set
// changes that argument or variable. Otherwise set adds the knob to the command line if
// the framework accepts it there, or else sets it in a copy of the configuration or in
// the environment.
func (w *rewriter) set(p profile.Profile, docs []document, name, value string) error {
	k := p.Knobs[name]
	at, err := w.m.find(p, docs, name)
	if err != nil {
		return err
	}
	change := Change{Knob: name, Where: at.where, Old: at.text, New: value}
	flags := len(k.Flags) > 0 && p.Style != profile.FileStyle && !w.sole(p)
	switch {
	case at.bare && k.Type == profile.Switch:
		return nil
	case at.kind == inArgument:
		w.replace(at, value)
	case at.kind == inEnv:
		w.setenv(at, k.Env, value)
	case flags:
		change.Where = k.Flags[0]
		w.add(p, k, value)
	case p.Style == profile.HydraStyle && len(k.Paths) > 0:
		change.Where = "++" + k.Paths[0]
		w.added = append(w.added, change.Where+"="+value)
	case len(k.Paths) > 0:
		if change.Where, err = w.edit(docs, at, name, k.Paths[0], k.Type.InFile(value)); err != nil {
			return err
		}
	case k.Env != "":
		change.Where = k.Env
		w.env = append(w.env, k.Env+"="+value)
	default:
		return &KnobError{name, "", value, "there is nowhere to write it"}
	}
	w.out.Changes = append(w.out.Changes, change)
	return nil
}

// sole reports whether the configuration must stay the only argument.
func (w *rewriter) sole(p profile.Profile) bool {
	return p.Config.Sole && len(w.m.files) > 0 && len(w.m.own()) == 1 && !w.m.files[0].script
}

// replace gives the argument at a place another value.
func (w *rewriter) replace(at place, value string) {
	if at.bare {
		w.args[at.flag] += "=" + value
	} else {
		w.args[at.at] = w.args[at.at][:at.cut] + value
	}
}

func (w *rewriter) setenv(at place, name, value string) {
	if at.at >= 0 {
		w.args[at.at] = name + "=" + value
		return
	}
	for i, entry := range w.env {
		if key, _, _ := strings.Cut(entry, "="); key == name {
			w.env[i] = name + "=" + value
		}
	}
}

// add puts a flag after the training program's arguments.
func (w *rewriter) add(p profile.Profile, k profile.Knob, value string) {
	switch {
	case k.Type == profile.Switch:
		w.added = append(w.added, k.Flags[0])
	case p.Style == profile.EqualsStyle:
		w.added = append(w.added, k.Flags[0]+"="+value)
	default:
		w.added = append(w.added, k.Flags[0], value)
	}
}

// edit changes a key in a copy of the configuration that has the key, or in a copy of the
// last configuration if none has it. It returns the name of the copy.
func (w *rewriter) edit(docs []document, at place, name, path, value string) (string, error) {
	doc := at.doc
	if doc == nil {
		for i := range docs {
			if !docs[i].script {
				doc = &docs[i]
			}
		}
	} else {
		path = at.path
	}
	if doc == nil || doc.script {
		return "", &KnobError{name, "", value, "there is no configuration to write it into"}
	}
	now, edited := w.texts[doc]
	if !edited {
		now = doc.content
	}
	change, err := doc.format.Set(now, path, doc.format.Text(value))
	if err != nil {
		return "", fmt.Errorf("%s: %w", doc.name, err)
	}
	w.texts[doc] = edit.Apply(now, []edit.Edit{change})
	if doc.in == nil || edited {
		return w.copyName(doc.name), nil
	}
	_, err = w.edit(nil, place{doc: doc.in, path: doc.key}, name, doc.key, doc.in.format.Quoted(w.copyName(doc.name)))
	return w.copyName(doc.name), err
}

// drop removes a knob from the command.
func (w *rewriter) drop(name string) error {
	k := w.m.Profile.Knobs[name]
	at, err := w.m.find(w.m.Profile, w.m.files, name)
	if err != nil || at.kind <= byDefault {
		return err
	}
	switch {
	case at.kind == inArgument:
		w.gone = append(w.gone, at.flag, at.at)
		w.out.Changes = append(w.out.Changes, Change{Knob: name, Where: at.where, Old: at.text})
		return nil
	case k.Default != "":
		return w.set(w.m.Profile, w.m.files, name, k.Default)
	}
	return &KnobError{name, at.where, at.text, "would make the framework start over; remove it"}
}

// Fallbacks finds the fallbacks of the profile that would change the command and that may
// be used: exact ones, and those that the user allows by name. host has the names of those
// that save host memory, in the order in which to try them. recompute reports whether
// [profile.Recompute] is one of the fallbacks found. The error is a [*KnobError] if the user allows
// a name that the profile does not have.
func Fallbacks(m *Match, allowed []string) (host []string, recompute bool, err error) {
	var names []string
	for _, f := range m.Profile.Fallbacks {
		names = append(names, f.Name)
		if !f.Exact && !slices.Contains(allowed, f.Name) || !changes(m, f) {
			continue
		}
		if f.Host {
			host = append(host, f.Name)
		}
		recompute = recompute || f.Name == profile.Recompute
	}
	for _, name := range allowed {
		if !slices.Contains(names, name) {
			return nil, false, &KnobError{"fallback", "", name, fmt.Sprintf("the fallbacks of %s are: %s", m.Profile.Name, cmp.Or(strings.Join(names, ", "), "none"))}
		}
	}
	return host, recompute, nil
}

// changes reports whether a fallback sets a knob to a value that it does not have already.
func changes(m *Match, f profile.Fallback) bool {
	for knob, value := range f.Set {
		if now, err := m.Text(knob); err != nil || now != value {
			return true
		}
	}
	return false
}

// settings writes the evaluation batch and the fallbacks. If the command has changed, it
// also turns off retries that compete with headroom's.
func (w *rewriter) settings(asked, p recovery.Plan, fallbacks []string) error {
	if p.Eval > 0 && p.Eval != asked.Eval {
		if _, has := w.m.Profile.Knobs[profile.Eval]; !has {
			return &KnobError{profile.Eval, "", strconv.Itoa(p.Eval), w.m.Profile.Name + " has no knob for the evaluation batch"}
		}
		if err := w.amount(w.m.Profile, w.m.files, profile.Eval, p.Eval); err != nil {
			return err
		}
	}
	for _, name := range fallbacks {
		at := slices.IndexFunc(w.m.Profile.Fallbacks, func(f profile.Fallback) bool { return f.Name == name })
		if at < 0 {
			return &KnobError{"fallback", "", name, w.m.Profile.Name + " has no such fallback"}
		}
		for _, knob := range slices.Sorted(maps.Keys(w.m.Profile.Fallbacks[at].Set)) {
			if err := w.text(knob, w.m.Profile.Fallbacks[at].Set[knob]); err != nil {
				return err
			}
		}
	}
	if len(w.out.Changes) == 0 {
		return nil
	}
	return w.competing()
}

// competing turns off everything in the command that would start the training again by
// itself.
func (w *rewriter) competing() error {
	for _, knob := range slices.Sorted(maps.Keys(w.m.Profile.SwitchOff)) {
		given, err := w.m.Sets(knob)
		if err != nil {
			return err
		}
		if given {
			if err := w.text(knob, w.m.Profile.SwitchOff[knob]); err != nil {
				return err
			}
		}
	}
	for _, o := range w.m.Launch.Options {
		if o.Name == "max_restarts" && command.Number(o.Value) > 0 {
			w.args[o.At] = w.args[o.At][:o.Cut] + "0"
			w.out.Changes = append(w.out.Changes, Change{"restarts", "--max-restarts", o.Value, "0"})
		}
	}
	return nil
}

// text gives a knob of the profile a value, unless it has that value already.
func (w *rewriter) text(name, value string) error {
	now, err := w.m.Text(name)
	if err != nil || strings.EqualFold(now, value) {
		return err
	}
	return w.set(w.m.Profile, w.m.files, name, value)
}

// rewritten returns the command with all changes.
func (w *rewriter) rewritten(p recovery.Plan) Result {
	for _, docs := range append([][]document{w.m.files}, w.m.under...) {
		for i := range docs {
			d := &docs[i]
			now, edited := w.texts[d]
			if !edited {
				continue
			}
			to := w.copyName(d.name)
			if d.in == nil {
				w.args[d.at] = w.args[d.at][:d.cut] + to
			}
			w.out.Copies = append(w.out.Copies, Copy{Path: to, From: d.name, Content: now, original: d.content})
		}
	}
	var args []string
	for i, arg := range w.args {
		if i == w.m.end() {
			args = append(args, w.added...)
		}
		if !slices.Contains(w.gone, i) {
			args = append(args, arg)
		}
	}
	if w.m.end() == len(w.args) {
		args = append(args, w.added...)
	}
	w.out.Command = command.Line{Args: args, Env: w.env, Dir: w.m.Command.Dir}
	w.out.Plan = p
	return w.out
}
