package profile

import (
	"errors"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"headroom/wrap/command"
)

// nameable lists the names that --knob accepts: those of knobs, "checkpoints", which says
// where the checkpoints are, and "unit", which says what they count in.
var nameable = []string{Micro, Accumulation, Global, Rampup, Eval, Length, "resume", "output", "checkpoints", "unit"}

// units lists the values of --knob unit.
var units = []string{string(Steps), string(Samples), string(Epochs), string(Micros)}

// KnobWords returns what can follow --knob: each name with its equals sign, and the values
// of those names that allow only certain values.
func KnobWords() []string {
	var words []string
	for _, name := range nameable {
		if name != "unit" {
			words = append(words, name+"=")
		}
	}
	for _, unit := range units {
		words = append(words, "unit="+unit)
	}
	return words
}

// Plain returns a profile for a script that no other profile fits. It is made from the
// knobs that the user named, in these forms:
//
//	micro=--batch-size      a flag
//	micro=data.batch_size   a key of the configuration, or of an override k=v
//	micro=$BATCH            a variable of the environment
//	micro=--batch@total     counted over all ranks; also @device, and @rank, which is the default
//	checkpoints=out/*.pt    which files are checkpoints; the newest is the one written last
//	unit=step               what a checkpoint counts in: step, sample, epoch or micro-batch
//
// Without a unit, the profile's Unit is "": a change then needs the user's word that the
// checkpoints do not count micro-batches.
//
// The error joins a [*Error] for every problem with the knobs.
func Plain(knobs []string) (Profile, error) {
	p := Profile{Name: "plain", Version: language, Style: SpaceStyle, Knobs: map[string]Knob{}, Normalised: Prove, Coupling: ByNothing,
		Config: ConfigFile{Flags: []string{"--config", "-c", "--config-file", "--config_file", "--cfg"}},
		Resume: Continuation{Mode: "none"}}
	p, err := p.WithKnobs(knobs)
	if err != nil {
		return p, err
	}
	if _, ok := p.Knobs[Micro]; !ok {
		return p, &Error{"--knob", Micro, "", "missing; write micro=FLAG"}
	}
	_, accumulates := p.Knobs[Accumulation]
	_, total := p.Knobs[Global]
	switch {
	case accumulates:
		p.Law.Write = []string{Micro, Accumulation}
	case total:
		p.Law = Law{Write: []string{Micro}, Derive: Accumulation}
	}
	if _, ok := p.Knobs["resume"]; ok && p.Checkpoints.Glob != "" {
		p.Resume = Continuation{Mode: "path", Set: map[string]string{"resume": "{checkpoint}"}}
	}
	return p, nil
}

// WithKnobs returns p with each of the user's knobs in the place that the user named.
func (p Profile) WithKnobs(knobs []string) (Profile, error) {
	var problems []error
	p.Knobs = maps.Clone(p.Knobs)
	seen := map[string]bool{}
	for _, text := range knobs {
		name, place, ok := strings.Cut(text, "=")
		switch {
		case !ok || place == "":
			problems = append(problems, &Error{"--knob", "", text, "write NAME=FLAG, as in micro=--batch-size"})
		case !slices.Contains(nameable, name):
			problems = append(problems, &Error{"--knob", name, place, UnknownWord("knob", name, nameable)})
		case seen[name]:
			problems = append(problems, &Error{"--knob", name, place, "named twice"})
		case strings.ContainsFunc(place, unicode.IsControl): // the run could not be resumed: its file has it in a line
			problems = append(problems, &Error{"--knob", name, strconv.Quote(place), "has a control character, such as a line's end; use a name without one"})
		case name == "checkpoints":
			p.Checkpoints = layoutOf(place)
			if why := badGlob(p.Checkpoints.Glob); why != "" {
				problems = append(problems, &Error{"--knob", name, place, why})
			}
		case name == "unit" && !slices.Contains(units, place):
			problems = append(problems, &Error{"--knob", name, place, "must be one of " + strings.Join(units, ", ")})
		case name == "unit":
			p.Unit = Unit(place)
		default:
			k, err := p.Knobs[name].at(name, place)
			problems = append(problems, err)
			if len(k.Paths) > 0 && len(k.Flags) == 0 && p.Name == "plain" {
				p.Style = HydraStyle
			}
			p.Knobs[name] = k
		}
		seen[name] = true
	}
	p.Trial = p.Trial.named(seen, p.Name == "plain")
	return p, errors.Join(problems...)
}

// layoutOf returns the layout of the checkpoints that match the pattern place. Its root is
// the longest beginning of place that has no wildcard, without the last element. Names of
// folders such as lr=[1,2] are common: in them, a bracket is not a wildcard.
func layoutOf(place string) Layout {
	root, glob := path.Split(path.Clean(place))
	for strings.ContainsAny(root, `*?\`) {
		var last string
		root, last = path.Split(path.Clean(root))
		if !strings.Contains(last, `\`) {
			last = strings.ReplaceAll(last, "[", `\[`)
		}
		glob = path.Join(last, glob)
	}
	return Layout{Root: path.Clean(root), Glob: glob, Time: true}
}

// badGlob says why glob is not a pattern of checkpoints, and what to write. It returns "" if it is one.
func badGlob(glob string) string {
	if _, err := path.Match(glob, ""); err != nil {
		return `must be a pattern of files; write \[ for a bracket that is part of a name, or close it, as in step-[0-9]*.pt`
	}
	if slices.Contains(strings.Split(glob, "/"), "**") {
		return "** would stand for a single folder; write */ for each level, as in out/*/step-*.pt"
	}
	return ""
}

// at returns the knob k, called name, with place as the only place where a command can set
// it. The scope is the one after an @ in place; without an @ it is Total for global, and
// PerRank for any other knob. The default is not known.
func (k Knob) at(name, place string) (Knob, error) {
	k.Flags, k.Paths, k.Env, k.Launcher, k.Default = nil, nil, "", "", ""
	if k.Type == "" {
		k.Type = typeOf(name)
	}
	k.Scope = scopeOf(name)
	place, scope, given := strings.Cut(place, "@")
	if given {
		k.Scope = Scope(scope)
	}
	variable, isVariable := strings.CutPrefix(place, "$")
	switch {
	case given && !slices.Contains([]Scope{PerDevice, PerRank, Total}, k.Scope):
		return k, &Error{"--knob", name, scope, "must be device, rank or total"}
	case isVariable && command.IsVariable(variable):
		k.Env = variable
	case isVariable || strings.ContainsAny(place, " =") || strings.Trim(place, "-") == "":
		return k, &Error{"--knob", name, place, "must be a flag, a key or a $VARIABLE"}
	case strings.HasPrefix(place, "-"):
		k.Flags = []string{place}
	default:
		k.Paths = []string{place}
	}
	return k, nil
}
