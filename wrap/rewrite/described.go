package rewrite

import (
	"maps"
	"slices"

	"headroom/wrap/profile"
)

// Launched is the training program, and the wrappers and launchers that start it.
type Launched struct {
	Program string   `json:"program,omitempty"` // script, module or executable; "" if headroom cannot see it
	By      []string `json:"by,omitempty"`      // wrappers and launchers, outermost first
	Layers  []string `json:"layers,omitempty"`  // profiles that accompany the framework, such as deepspeed
	Ranks   int      `json:"ranks,omitempty"`   // number of data-parallel ranks; 0 if not known
	Why     string   `json:"why,omitempty"`     // why the number of ranks is not known
}

// KnobAt is a knob and the place where it is set.
type KnobAt struct {
	Name  string `json:"name"`
	Value string `json:"value,omitempty"`
	Kind  string `json:"kind"`  // "argument", "environment", "file", "default", "absent" or "unreadable"
	Where string `json:"where"` // "--batch-size", "train.yaml:12"; for a knob that is absent, where it would be written
}

// LaunchedAs describes what starts the training program of m.
func LaunchedAs(m *Match) Launched {
	l := Launched{By: m.Launch.Layers}
	if len(m.Launch.Script+m.Launch.Module+m.Launch.Program) == 0 {
		return l
	}
	l.Program = m.Launch.Name()
	for _, p := range m.Layers {
		l.Layers = append(l.Layers, p.Name)
	}
	n, why, err := ranksOf(m)
	if err != nil {
		why = err.Error()
	}
	l.Ranks, l.Why = n, why
	return l
}

// kinds maps each kind of place to the name that an explanation uses for it.
var kinds = map[placeKind]string{absent: "absent", byDefault: "default", inFile: "file", inEnv: "environment", inArgument: "argument"}

// Knobs returns the profile's knobs. First come those for the batch sizes, the
// accumulation, the length of the training, the devices and the nodes.
func Knobs(m *Match) []KnobAt {
	names := slices.Sorted(maps.Keys(m.Profile.Knobs))
	first := []string{profile.Micro, profile.Accumulation, profile.Global, profile.Eval, profile.Length, profile.Devices, profile.Nodes}
	slices.SortStableFunc(names, func(a, b string) int { return rank(first, a) - rank(first, b) })
	var all []KnobAt
	for _, name := range names {
		at, err := m.find(m.Profile, m.files, name)
		k := KnobAt{Name: name, Value: at.text, Kind: kinds[at.kind], Where: at.where}
		switch {
		case err != nil:
			k.Kind, k.Where = "unreadable", err.Error()
		case at.kind == absent:
			k.Where = m.Where(name)
		case at.kind == inFile:
			k.Where += ", " + at.path
		}
		all = append(all, k)
	}
	return all
}

func rank(first []string, name string) int {
	if at := slices.Index(first, name); at >= 0 {
		return at
	}
	return len(first)
}
