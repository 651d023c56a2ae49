package rewrite

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"headroom/wrap/command"
	"headroom/wrap/edit"
	"headroom/wrap/profile"
)

// document is a configuration file that a command names.
type document struct {
	name    string // as the command gives it
	at, cut int    // index of the argument that names it, and offset of the name in that argument
	format  edit.Format
	content []byte
	script  bool // it is the training program itself, which headroom reads but never edits

	err error     // why it could not be read; may be nil
	in  *document // the configuration that names it; nil if an argument names it
	key string    // the key of in that names it
}

func (m *Match) read(name string) ([]byte, error) {
	if m.Given.Files == nil {
		return nil, fmt.Errorf("%s: %w", name, fs.ErrNotExist)
	}
	content, err := command.ReadFile(m.Given.Files, m.Command.Abs(name))
	if errors.Is(err, command.ErrTooLarge) {
		return nil, fmt.Errorf("%s: larger than %d bytes: not a configuration", name, command.MaxDocument)
	}
	return content, err
}

// documents returns the configurations of the command, found as p.Config describes. They
// are in order of precedence: each overrides those before it.
func documents(m *Match, p profile.Profile) []document {
	var all []document
	add := func(name string, at, cut int, script bool) {
		content, err := m.read(name)
		if err != nil && script {
			return // the defaults in the script are then not known
		}
		format := edit.FormatOf(name)
		if format == "" {
			format = p.Config.Format
		}
		if format != "" {
			all = append(all, document{name: name, at: at, cut: cut, format: format, content: content, script: script, err: err})
		}
	}
	if p.Config.Script && m.Launch.Script != "" {
		add(m.Launch.Script, m.Launch.At, 0, true)
	}
	flagged(m, p, add)
	if p.Config.Positional {
		positional(m, p, add)
	}
	for _, key := range p.Config.Keys {
		at, err := inFiles(profile.Knob{Paths: []string{key}}, m.files, key)
		if before := len(all); err == nil && at.kind == inFile {
			if add(at.text, 0, 0, false); len(all) > before {
				all[before].in, all[before].key = at.doc, key
			}
		}
	}
	return all
}

// flagged adds the configurations that options name, both the training program's and the
// launcher's.
func flagged(m *Match, p profile.Profile, add func(name string, at, cut int, script bool)) {
	for i := m.Launch.First; i < m.end(); i++ {
		name, value, given := strings.Cut(m.Command.Args[i], "=")
		switch {
		case !slices.Contains(p.Config.Flags, name):
		case given:
			add(value, i, len(name)+1, false)
		case i+1 < m.end() && !strings.HasPrefix(m.Command.Args[i+1], "-"):
			add(m.Command.Args[i+1], i+1, 0, false)
		}
	}
	for _, o := range m.Launch.Options {
		if slices.Contains(p.Config.Flags, "--"+o.Name) {
			add(o.Value, o.At, o.Cut, false)
		}
	}
}

// positional adds the positional arguments that are configurations.
func positional(m *Match, p profile.Profile, add func(name string, at, cut int, script bool)) {
	if p.Config.Sole && len(m.Command.Args) != m.Launch.First+1 {
		return
	}
	for i := m.Launch.First; i < m.end(); i++ {
		arg := m.Command.Args[i]
		format := edit.FormatOf(arg)
		if strings.HasPrefix(arg, "-") || format == "" || (format == edit.Python) != (p.Config.Format == edit.Python) {
			continue
		}
		if i > m.Launch.First && strings.HasPrefix(m.Command.Args[i-1], "-") && !strings.Contains(m.Command.Args[i-1], "=") {
			continue // the value of an option
		}
		add(arg, i, 0, false)
	}
}

// all reports whether the file has every one of the keys.
func (d document) all(keys []string) bool {
	return !slices.ContainsFunc(keys, func(key string) bool { return !d.format.Has(d.content, key) })
}

// first returns the first of keys that the file has, or "" if it has none.
func (d document) first(keys []string) string {
	for _, key := range keys {
		if d.format.Has(d.content, key) {
			return key
		}
	}
	return ""
}

// copyName returns the name of a changed copy of a file. The copy is in the folder of the
// original, so that relative paths in it still hold.
func copyName(name string) string { return prefixed(name, ".headroom-") }

func prefixed(name, prefix string) string {
	dir, base := path.Split(name)
	return dir + prefix + strings.TrimPrefix(base, ".headroom-")
}

// copyName returns the name of the changed copy of a configuration.
func (w *rewriter) copyName(name string) string { return prefixed(name, w.prefix) }

// script returns the text of the command's script, or nil if it cannot be read.
func (m *Match) script() []byte {
	if m.Launch.Script == "" {
		return nil
	}
	content, _ := m.read(m.Launch.Script) // a script that cannot be read tells nothing
	return content
}
