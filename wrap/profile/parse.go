package profile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"headroom/spelling"
	"headroom/wrap/command"
	"headroom/wrap/edit"
)

// Error is one problem in a profile. [Parse] returns all problems at once,
// joined into one error.
type Error struct {
	Where string // "mygpt.yaml:12", or only the file
	Key   string // "knobs.micro.scope"; "" if the problem is not with one key
	Value string // as it was written; "" if there is none
	Text  string // what is wrong, and what is allowed or what to do
}

func (e *Error) Error() string {
	parts := []string{e.Where}
	for _, part := range []string{e.Key, e.Value} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	return strings.Join(append(parts, e.Text), ": ")
}

// Parse parses a profile. Errors give name as the name of the file. The error
// joins a [*Error] for every problem: unknown keys, bad values, references to
// knobs that do not exist.
func Parse(name string, content []byte) (Profile, error) {
	r := reader{file: name}
	var doc, second yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(content))
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF) || err == nil && len(doc.Content) == 0:
		r.add(0, "", "", "the file is empty; a profile needs name, match, knobs and law")
	case err != nil:
		r.add(0, "", "", "invalid YAML: "+strings.TrimPrefix(err.Error(), "yaml: "))
	case !errors.Is(dec.Decode(&second), io.EOF):
		r.add(0, "", "", "more than one document; a profile is a single document")
	case r.readable(doc.Content[0]):
		r.profile(doc.Content[0])
		r.check()
		r.p.File, r.p.Text = name, content
	}
	return r.p, errors.Join(r.problems...)
}

type reader struct {
	file     string
	p        Profile
	lines    map[string]int // line of each key
	problems []error
}

func (r *reader) add(line int, key, value, text string) {
	where := r.file
	if line > 0 {
		where += ":" + strconv.Itoa(line)
	}
	r.problems = append(r.problems, &Error{where, key, value, text})
}

// fields maps the keys of a YAML mapping to the functions that read their values.
type fields map[string]func(key string, n *yaml.Node)

// mapping reads the mapping n, which is the value of key. It reports unknown and repeated
// keys.
func (r *reader) mapping(key string, n *yaml.Node, known fields) {
	seen := map[string]int{}
	r.each(key, n, func(name string, k, v *yaml.Node) {
		full := strings.TrimPrefix(key+"."+name, ".")
		read, ok := known[name]
		switch first, twice := seen[name]; {
		case twice:
			r.add(k.Line, full, "", fmt.Sprintf("given twice, first on line %d", first))
		case !ok:
			r.add(k.Line, full, "", UnknownWord("key", name, slices.Sorted(maps.Keys(known))))
		default:
			r.lines[full] = v.Line
			read(full, v)
		}
		seen[name] = k.Line
	})
}

// each calls f for every key of a mapping, with the nodes of the key and of its value.
func (r *reader) each(key string, n *yaml.Node, f func(name string, k, v *yaml.Node)) {
	if n.Kind != yaml.MappingNode {
		r.add(n.Line, key, n.Value, "not a mapping; write keys and values")
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		f(n.Content[i].Value, n.Content[i], n.Content[i+1])
	}
}

// language is the version of the profile language that this version of headroom reads.
const language = 1

// readable reports whether a profile is written in the version of the profile language
// that this version of headroom reads. The profile's version is checked before anything
// else: in another version the keys may mean something else, and errors about them would
// mislead.
func (r *reader) readable(n *yaml.Node) bool {
	r.p.Version = language
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		if key, value := n.Content[i], n.Content[i+1]; key.Value == "version" && value.Value != strconv.Itoa(language) {
			r.add(value.Line, "version", value.Value, fmt.Sprintf("this headroom reads version %d of the profile language, which is also the default; update headroom, or write the profile in version %[1]d", language))
			return false
		}
	}
	return true
}

func (r *reader) profile(n *yaml.Node) {
	r.lines = map[string]int{}
	p := &r.p
	r.mapping("", n, fields{
		"version": r.positive(&p.Version),
		"name":    r.text(&p.Name),
		"layer":   r.yes(&p.Layer),
		"match": func(key string, n *yaml.Node) {
			r.mapping(key, n, fields{"argv": r.pattern(&p.Match.Argv), "module": r.list(&p.Match.Modules), "imports": r.list(&p.Match.Imports),
				"flags": r.list(&p.Match.Flags), "keys": r.list(&p.Match.Keys), "forbid": r.list(&p.Match.Forbid)})
		},
		"style": oneOf(r, &p.Style, SpaceStyle, EqualsStyle, HydraStyle, FileStyle),
		"config": func(key string, n *yaml.Node) {
			r.mapping(key, n, fields{"format": oneOf(r, &p.Config.Format, edit.YAML, edit.JSON, edit.TOML, edit.Python), "flags": r.list(&p.Config.Flags), "keys": r.list(&p.Config.Keys),
				"positional": r.yes(&p.Config.Positional), "sole": r.yes(&p.Config.Sole), "script": r.yes(&p.Config.Script)})
		},
		"knobs":       r.knobs,
		"law":         r.law,
		"checkpoints": r.layout,
		"resume":      r.resume,
		"unit":        oneOf(r, &p.Unit, Steps, Samples, Epochs, Micros),
		"normalised":  oneOf(r, &p.Normalised, IsNormalised, NotNormalised, Prove),
		"lr_coupling": oneOf(r, &p.Coupling, ByProduct, ByMicro, ByTotal, ByNothing),
		"fallbacks":   r.fallbacks,
		"switch_off":  r.settings(&p.SwitchOff),
		"trial":       r.trial,
	})
}

func (r *reader) knobs(key string, n *yaml.Node) {
	r.p.Knobs = map[string]Knob{}
	r.each(key, n, func(name string, k, v *yaml.Node) {
		if _, twice := r.p.Knobs[name]; twice {
			r.add(k.Line, key+"."+name, "", "given twice")
		}
		var knob Knob
		r.lines[key+"."+name] = k.Line
		r.mapping(key+"."+name, v, fields{"flags": r.list(&knob.Flags), "launcher": r.text(&knob.Launcher), "env": r.text(&knob.Env),
			"paths": r.list(&knob.Paths), "type": oneOf(r, &knob.Type, Int, List, Bool, Switch, Text), "scope": oneOf(r, &knob.Scope, PerDevice, PerRank, Total, Unsaid),
			"default": r.text(&knob.Default), "unset": r.list(&knob.Unset), "min": r.positive(&knob.Min)})
		r.p.Knobs[name] = knob
	})
}

func (r *reader) law(key string, n *yaml.Node) {
	l := &r.p.Law
	r.mapping(key, n, fields{"write": r.list(&l.Write), "derive": r.text(&l.Derive), "pin": r.list(&l.Pin), "exclude": r.lists(&l.Exclude), "require": r.list(&l.Require)})
}

func (r *reader) layout(key string, n *yaml.Node) {
	l, order := &r.p.Checkpoints, ""
	r.mapping(key, n, fields{"root": r.text(&l.Root), "glob": r.text(&l.Glob), "order": oneOf(r, &order, "number", "time"), "complete": r.lists(&l.Complete),
		"pointer": r.text(&l.Pointer), "pointed": r.text(&l.Pointed), "cadence": oneOf(r, &l.Cadence, EverySteps, EveryEpoch, NoSaves),
		"saves": r.text(&l.Saves), "every": r.text(&l.Every), "never": r.list(&l.Never), "within_epoch": r.list(&l.Within)})
	l.Time = order == "time"
}

func (r *reader) resume(key string, n *yaml.Node) {
	c := &r.p.Resume
	r.mapping(key, n, fields{"mode": oneOf(r, &c.Mode, "path", "auto", "none"), "set": r.settings(&c.Set), "drop": r.list(&c.Drop),
		"patch": func(key string, n *yaml.Node) {
			r.items(key, n, func(n *yaml.Node) {
				var p Patch
				r.mapping(key, n, fields{"file": r.text(&p.File), "key": r.text(&p.Key), "value": r.text(&p.Value)})
				c.Patch = append(c.Patch, p)
			})
		},
		"needs": func(key string, n *yaml.Node) {
			r.mapping(key, n, fields{"package": r.text(&c.Needs.Package), "version": r.text(&c.Needs.Version)})
		}})
}

func (r *reader) fallbacks(key string, n *yaml.Node) {
	r.items(key, n, func(n *yaml.Node) {
		var f Fallback
		of := "device"
		r.mapping(key, n, fields{"name": r.text(&f.Name), "set": r.settings(&f.Set), "of": oneOf(r, &of, "device", "host"), "exact": r.yes(&f.Exact)})
		f.Host = of == "host"
		r.p.Fallbacks = append(r.p.Fallbacks, f)
	})
}

func (r *reader) items(key string, n *yaml.Node, f func(*yaml.Node)) {
	if n.Kind != yaml.SequenceNode {
		r.add(n.Line, key, n.Value, "not a list; write [..] or lines that begin with -")
		return
	}
	for _, item := range n.Content {
		f(item)
	}
}

func (r *reader) text(to *string) func(string, *yaml.Node) {
	return func(key string, n *yaml.Node) {
		if n.Kind != yaml.ScalarNode || n.Value == "" {
			r.add(n.Line, key, n.Value, "not a value; write a string or a number")
		}
		*to = n.Value
	}
}

func (r *reader) list(to *[]string) func(string, *yaml.Node) {
	return func(key string, n *yaml.Node) {
		r.items(key, n, func(n *yaml.Node) {
			var s string
			r.text(&s)(key, n)
			*to = append(*to, s)
		})
	}
}

// lists returns a function that reads a list of lists. An item that is a string counts
// as a list of one string.
func (r *reader) lists(to *[][]string) func(string, *yaml.Node) {
	return func(key string, n *yaml.Node) {
		r.items(key, n, func(n *yaml.Node) {
			var all []string
			if n.Kind == yaml.ScalarNode {
				all = []string{n.Value}
			} else {
				r.list(&all)(key, n)
			}
			*to = append(*to, all)
		})
	}
}

func (r *reader) settings(to *map[string]string) func(string, *yaml.Node) {
	return func(key string, n *yaml.Node) {
		*to = map[string]string{}
		r.each(key, n, func(name string, _, v *yaml.Node) {
			(*to)[name] = v.Value
			if v.Kind != yaml.ScalarNode {
				r.add(v.Line, key+"."+name, "", "not a value; write a string or a number")
			}
		})
	}
}

func (r *reader) yes(to *bool) func(string, *yaml.Node) {
	return func(key string, n *yaml.Node) {
		if n.Value != "true" && n.Value != "false" {
			r.add(n.Line, key, n.Value, "must be true or false")
		}
		*to = n.Value == "true"
	}
}

func (r *reader) positive(to *int) func(string, *yaml.Node) {
	return func(key string, n *yaml.Node) {
		if *to = command.Number(n.Value); *to == 0 {
			r.add(n.Line, key, n.Value, "must be a whole number of at least 1")
		}
	}
}

func (r *reader) pattern(to **regexp.Regexp) func(string, *yaml.Node) {
	return func(key string, n *yaml.Node) {
		re, err := regexp.Compile("^(?:" + n.Value + ")$")
		if err != nil {
			r.add(n.Line, key, n.Value, "not a regular expression: "+err.Error())
			return
		}
		*to = re
	}
}

// oneOf returns a function that reads a word, which must be one of words.
func oneOf[T ~string](r *reader, to *T, words ...T) func(string, *yaml.Node) {
	return func(key string, n *yaml.Node) {
		if *to = T(n.Value); slices.Contains(words, *to) {
			return
		}
		all := make([]string, len(words))
		for i, w := range words {
			all[i] = string(w)
		}
		text := "not allowed; must be one of " + strings.Join(all, ", ")
		if best := spelling.Nearest(n.Value, all); best != "" {
			text += "; did you mean " + best + "?"
		}
		r.add(n.Line, key, n.Value, text)
	}
}
