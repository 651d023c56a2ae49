package wrap

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"

	"headroom/wrap/command"
)

//go:embed profiles/*.yaml
var embedded embed.FS

// Builtin returns the profiles that come with headroom, the files in profiles/; they must
// not be modified. It is safe for concurrent use.
func Builtin() []Profile { return slices.Clone(builtins()) }

var builtins = sync.OnceValue(func() []Profile {
	all, err := LoadProfiles(embedded, "profiles")
	if err != nil {
		panic("wrap: built-in profiles: " + err.Error())
	}
	for i := range all {
		all[i].File = ""
	}
	return all
})

// LoadProfiles reads the profile in the file name or, if name is a folder, those in every
// .yaml file in that folder. files is the file system that name is in. The error joins
// all problems. Two profiles with the same name are a problem, too.
func LoadProfiles(files fs.FS, name string) ([]Profile, error) {
	names := []string{name}
	if info, err := fs.Stat(files, name); err == nil && info.IsDir() {
		if names, err = fs.Glob(files, path.Join(name, "*.yaml")); err != nil {
			return nil, fmt.Errorf("read profiles: %w", err)
		}
	}
	var all []Profile
	var problems []error
	for _, name := range names {
		content, err := fs.ReadFile(files, name)
		if err != nil {
			problems = append(problems, fmt.Errorf("read profile: %w", err))
			continue
		}
		p, err := ParseProfile(name, content)
		if err == nil && slices.ContainsFunc(all, func(q Profile) bool { return q.Name == p.Name }) {
			err = &ProfileError{name, "name", p.Name, "a profile in another file has this name, too"}
		}
		if problems = append(problems, err); err == nil {
			all = append(all, p)
		}
	}
	return all, errors.Join(problems...)
}

// Over returns the profiles of both lists, in order. If both have a profile of the same
// name, only the one in first is kept, so that a user's profile replaces a built-in one.
func Over(first, then []Profile) []Profile {
	all := slices.Clone(first)
	for _, p := range then {
		if !slices.ContainsFunc(first, func(q Profile) bool { return q.Name == p.Name }) {
			all = append(all, p)
		}
	}
	return all
}

// nameable lists the names that --knob accepts: those of knobs, "checkpoints", which says
// where the checkpoints are, and "unit", which says what they count in.
var nameable = []string{micro, accumulation, global, rampup, eval, steps, "resume", "output", "checkpoints", "unit"}

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
// The error joins a [*ProfileError] for every problem with the knobs.
func Plain(knobs []string) (Profile, error) {
	p := Profile{Name: "plain", Version: language, Style: SpaceStyle, Knobs: map[string]Knob{}, Normalised: Prove, Coupling: ByNothing,
		Config: ConfigFile{Flags: []string{"--config", "-c", "--config-file", "--config_file", "--cfg"}},
		Resume: Continuation{Mode: "none"}}
	p, err := p.withKnobs(knobs)
	if err != nil {
		return p, err
	}
	if _, ok := p.Knobs[micro]; !ok {
		return p, &ProfileError{"--knob", micro, "", "missing; write micro=FLAG"}
	}
	_, accumulates := p.Knobs[accumulation]
	_, total := p.Knobs[global]
	switch {
	case accumulates:
		p.Law.Write = []string{micro, accumulation}
	case total:
		p.Law = Law{Write: []string{micro}, Derive: accumulation}
	}
	if _, ok := p.Knobs["resume"]; ok && p.Checkpoints.Glob != "" {
		p.Resume = Continuation{Mode: "path", Set: map[string]string{"resume": "{checkpoint}"}}
	}
	return p, nil
}

// withKnobs returns p with each of the user's knobs in the place that the user named.
func (p Profile) withKnobs(knobs []string) (Profile, error) {
	var problems []error
	p.Knobs = maps.Clone(p.Knobs)
	seen := map[string]bool{}
	for _, text := range knobs {
		name, place, ok := strings.Cut(text, "=")
		switch {
		case !ok || place == "":
			problems = append(problems, &ProfileError{"--knob", "", text, "write NAME=FLAG, as in micro=--batch-size"})
		case !slices.Contains(nameable, name):
			problems = append(problems, &ProfileError{"--knob", name, place, unknownWord("knob", name, nameable)})
		case seen[name]:
			problems = append(problems, &ProfileError{"--knob", name, place, "named twice"})
		case name == "checkpoints":
			p.Checkpoints = layoutOf(place)
		case name == "unit" && !slices.Contains(units, place):
			problems = append(problems, &ProfileError{"--knob", name, place, "must be one of " + strings.Join(units, ", ")})
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
// the longest beginning of place that has no wildcard, without the last element.
func layoutOf(place string) Layout {
	root, glob := path.Split(path.Clean(place))
	for strings.ContainsAny(root, `*?[\`) {
		var last string
		root, last = path.Split(path.Clean(root))
		glob = path.Join(last, glob)
	}
	return Layout{Root: path.Clean(root), Glob: glob, Time: true}
}

// at returns the knob k, called name, with place as the only place where a command can set
// it. The scope is the one after an @ in place; without an @ it is Total for global, and
// PerRank for any other knob. The default is not known.
func (k Knob) at(name, place string) (Knob, error) {
	k.Flags, k.Paths, k.Env, k.Launcher, k.Default = nil, nil, "", "", ""
	if k.Type == "" {
		k.Type = typeOf(name)
	}
	if k.Scope = PerRank; name == global {
		k.Scope = Total
	}
	place, scope, given := strings.Cut(place, "@")
	if given {
		k.Scope = Scope(scope)
	}
	variable, isVariable := strings.CutPrefix(place, "$")
	switch {
	case given && !slices.Contains([]Scope{PerDevice, PerRank, Total}, k.Scope):
		return k, &ProfileError{"--knob", name, scope, "must be device, rank or total"}
	case isVariable && command.IsVariable(variable):
		k.Env = variable
	case isVariable || strings.ContainsAny(place, " =") || strings.Trim(place, "-") == "":
		return k, &ProfileError{"--knob", name, place, "must be a flag, a key or a $VARIABLE"}
	case strings.HasPrefix(place, "-"):
		k.Flags = []string{place}
	default:
		k.Paths = []string{place}
	}
	return k, nil
}
