package profile

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"headroom/spelling"
)

// Braces matches a name in braces, such as {output}.
var Braces = regexp.MustCompile(`\{([a-z_]*)\}`)

// check validates the profile as a whole, and fills in defaults. Every knob that the
// profile refers to must exist, and the profile must use every knob that it has.
func (r *reader) check() {
	p := &r.p
	if p.Name == "" {
		r.add(0, "name", "", "missing; give the name that --profile takes")
	}
	if !p.Layer && p.Match.Argv == nil && len(p.Match.Modules)+len(p.Match.Imports)+len(p.Match.Flags)+len(p.Match.Keys) == 0 {
		r.add(0, "match", "", "missing; give at least one of argv, module, imports, flags and keys")
	}
	if slices.Contains(p.Match.Keys, "batch_size") && len(p.Match.Keys) == 1 {
		r.add(r.lines["match.keys"], "match.keys", "batch_size", "does not distinguish one framework from another; add keys that only this one has")
	}
	if _, ok := p.Knobs[Micro]; !ok && !p.Layer {
		r.add(0, "knobs.micro", "", "missing; without it nothing can be made smaller")
	}
	for name := range p.Knobs {
		r.knob(name)
	}
	r.references()
	r.checkLaw()
	r.checkResume()
	r.checkTrial()
}

// knob checks one knob, and fills in its scope and type if they are not given.
func (r *reader) knob(name string) {
	p, key := &r.p, "knobs."+name
	k := p.Knobs[name]
	if len(k.Flags)+len(k.Paths) == 0 && k.Env == "" && k.Launcher == "" {
		r.add(r.lines[key], key, "", "there is nowhere to set it; give flags, paths, env or launcher")
	}
	if len(k.Flags) == 0 && len(k.Paths) > 0 && p.Config.Format == "" && p.Style != HydraStyle {
		r.add(r.lines[key], key, k.Paths[0], "the profile describes no configuration file that could hold this key; add config, or give flags")
	}
	switch isCounted := slices.Contains(Counted, name); {
	case k.Scope != "" && !isCounted:
		r.add(r.lines[key+".scope"], key+".scope", string(k.Scope), "only micro, accumulation and global have a scope")
	case k.Scope == "" && isCounted:
		k.Scope = scopeOf(name)
	}
	if k.Min > 0 && name != Micro {
		r.add(r.lines[key+".min"], key+".min", fmt.Sprint(k.Min), "only micro may have a lower bound")
	}
	if k.Type == "" {
		k.Type = typeOf(name)
	}
	p.Knobs[name] = k
}

// scopeOf returns the scope of a counted knob whose profile does not give one.
func scopeOf(name string) Scope {
	if name == Global {
		return Total
	}
	return PerRank
}

// references checks that every knob that the profile refers to exists, and that the
// profile uses every knob.
func (r *reader) references() {
	p := &r.p
	used := map[string]bool{Micro: true, Accumulation: true, Global: true, Eval: true, Devices: true, Nodes: true, Processes: true, Length: true, Rampup: true}
	speak := func(key string, names ...string) {
		for _, name := range names {
			used[name] = true
			if _, ok := p.Knobs[name]; !ok {
				r.add(r.lines[key], key, name, UnknownWord("knob", name, slices.Sorted(maps.Keys(p.Knobs))))
			}
		}
	}
	speak("law.write", p.Law.Write...)
	speak("law.pin", p.Law.Pin...)
	for _, group := range p.Law.Exclude {
		speak("law.exclude", group...)
	}
	for _, m := range Braces.FindAllStringSubmatch(p.Checkpoints.Root, -1) {
		speak("checkpoints.root", m[1])
	}
	if p.Checkpoints.Saves != "" {
		speak("checkpoints.saves", p.Checkpoints.Saves)
	}
	if p.Checkpoints.Every != "" {
		speak("checkpoints.every", p.Checkpoints.Every)
	}
	for _, word := range p.Checkpoints.Within {
		used[word] = true // a knob, or a word of a command or configuration
	}
	speak("resume.set", slices.Sorted(maps.Keys(p.Resume.Set))...)
	speak("resume.drop", p.Resume.Drop...)
	speak("switch_off", slices.Sorted(maps.Keys(p.SwitchOff))...)
	speak("trial.set", slices.Sorted(maps.Keys(p.Trial.Set))...)
	speak("trial.if_given", slices.Sorted(maps.Keys(p.Trial.IfGiven))...)
	speak("trial.drop", p.Trial.Drop...)
	for _, f := range p.Fallbacks {
		speak("fallbacks", slices.Sorted(maps.Keys(f.Set))...)
	}
	for _, name := range slices.Sorted(maps.Keys(p.Knobs)) {
		if !used[name] {
			r.add(r.lines["knobs."+name], "knobs."+name, "", "nothing uses it; name it in law, checkpoints, resume, fallbacks, switch_off or trial, or leave it out")
		}
	}
}

func (r *reader) checkLaw() {
	p := &r.p
	writes := p.Writes(Accumulation)
	if len(p.Law.Write) > 0 && !p.Writes(Micro) {
		r.add(r.lines["law.write"], "law.write", "", "micro is missing from the list; without micro nothing can be made smaller")
	}
	for _, name := range slices.Concat(p.Law.Write, p.Law.Pin) {
		if name != Micro && name != Accumulation && name != Global {
			r.add(r.lines["law.write"], "law", name, "only micro, accumulation and global can be written or pinned")
		}
	}
	r.checkDerived()
	if p.Law.Derive == "" && !writes && !p.Layer && p.Knobs != nil {
		r.add(r.lines["law"], "law", "", "nothing keeps the effective batch; write micro and accumulation, or derive accumulation from global")
	}
	for _, text := range p.Law.Require {
		if _, err := Condition(text, Amounts{Micro: 1, Accumulation: 1, Global: 1, "world": 1}); err != nil {
			r.add(r.lines["law.require"], "law.require", text, err.Error())
		}
	}
	for _, patch := range p.Resume.Patch {
		if _, err := Evaluate(patch.Value, Amounts{Micro: 1, Accumulation: 1, Global: 1, "world": 1, Devices: 1}); err != nil {
			r.add(r.lines["resume.patch"], "resume.patch", patch.Value, err.Error())
		}
	}
}

// checkDerived checks the knob that the framework computes by itself.
func (r *reader) checkDerived() {
	p := &r.p
	_, hasGlobal := p.Knobs[Global]
	if p.Law.Derive != "" && p.Law.Derive != Accumulation {
		r.add(r.lines["law.derive"], "law.derive", p.Law.Derive, "only accumulation can be derived, and only from global")
	}
	if p.Law.Derive != "" && !hasGlobal {
		r.add(r.lines["law.derive"], "law.derive", p.Law.Derive, "needs the knob global, from which it is derived")
	}
	if _, has := p.Knobs[Rampup]; has && p.Law.Derive == "" {
		r.add(r.lines["knobs."+Rampup], "knobs."+Rampup, "", "needs law.derive: accumulation, because a framework that changes the effective batch computes the accumulation for each step")
	}
}

func (r *reader) checkResume() {
	p := &r.p
	if p.Resume.Mode == "" {
		p.Resume.Mode = "none"
	}
	if why := badGlob(p.Checkpoints.Glob); why != "" {
		r.add(r.lines["checkpoints.glob"], "checkpoints.glob", p.Checkpoints.Glob, why)
	}
	mode := p.Resume.Mode
	if mode != "none" && p.Checkpoints.Glob == "" {
		r.add(r.lines["resume.mode"], "resume.mode", mode, "needs checkpoints.root and checkpoints.glob to find a checkpoint")
	}
	if mode == "path" && len(p.Resume.Set) == 0 {
		r.add(r.lines["resume.mode"], "resume.mode", mode, "needs resume.set to say how the path is passed")
	}
	if p.Resume.Needs.Version != "" && (p.Resume.Needs.Package == "" || versionNumbers(p.Resume.Needs.Version) == nil) {
		r.add(r.lines["resume.needs"], "resume.needs", p.Resume.Needs.Version, "write package: NAME and version: NUMBER, as in 1.16.0")
	}
	if p.Normalised == "" {
		p.Normalised = Prove
	}
	if p.Coupling == "" {
		p.Coupling = ByNothing
	}
	if p.Unit == "" {
		p.Unit = Steps
	}
	if p.Style == "" {
		p.Style = SpaceStyle
	}
}

// UnknownWord says that there is no what with the given name, and names the nearest known one, or
// all of them.
func UnknownWord(what, name string, known []string) string {
	if best := spelling.Nearest(name, known); best != "" {
		return fmt.Sprintf("unknown %s; did you mean %s?", what, best)
	}
	return fmt.Sprintf("unknown %s; must be one of %s", what, strings.Join(known, ", "))
}
