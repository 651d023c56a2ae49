package profile

import (
	"regexp"
	"slices"
	"strings"

	"headroom/wrap/edit"
)

// Profile is what is known about a framework: how to recognise its commands, where they
// set the batch size, what its checkpoints look like and how it resumes from one.
// docs/profiles.md describes each key of the profile language.
type Profile struct {
	Name        string
	Version     int  // version of the profile language that the profile is written in
	Layer       bool // describes something that accompanies a framework, such as DeepSpeed
	Match       Signals
	Style       Style
	Config      ConfigFile
	Knobs       map[string]Knob
	Law         Law
	Checkpoints Layout
	Resume      Continuation
	Unit        Unit
	Normalised  Normalised
	Coupling    Coupling
	Fallbacks   []Fallback
	SwitchOff   map[string]string // knob → value that turns off the framework's own retries
	Trial       Rehearsal

	File string // file that it was read from; "" if it is built in, or made from --knob alone
	Text []byte // content of that file, verbatim; must not be modified
}

// Signals are the signs by which the commands of a framework are recognised. They are
// scored independently. Argv and Modules count as one sign, and each sign counts once.
type Signals struct {
	Argv    *regexp.Regexp // 3 points if it matches the program's name; may be nil
	Modules []string       // 3 points if python -m runs one of these modules, or a module below one
	Imports []string       // 2 points if the script's import lines have one of these words
	Flags   []string       // 2 points if the command gives one of them
	Keys    []string       // 2 points if the configuration has all of them
	Forbid  []string       // a configuration with one of these keys does not count
}

// Style is how an override is written on the command line.
type Style string

// The styles.
const (
	SpaceStyle  Style = "--k v" // or --k=v: argparse accepts both
	EqualsStyle Style = "--k=v" // only this form
	HydraStyle  Style = "k=v"   // ++k=v sets or adds
	FileStyle   Style = "file"  // only in the configuration file
)

// ConfigFile is how a command names its configuration.
type ConfigFile struct {
	Format     edit.Format // format of files whose suffix does not show it; "" if there is no configuration
	Flags      []string    // flags whose value is the name of the file
	Keys       []string    // keys of the framework's configuration whose value is the name of the file; for layers
	Positional bool        // arguments with the suffix of a known format are configurations, too
	Sole       bool        // a positional configuration must be the only argument, so no flag can override it
	Script     bool        // the assignments in the script are the defaults
}

// Type is the type of a knob's value.
type Type string

// The types.
const (
	Int    Type = "int" // an integer expression is accepted, too
	List   Type = "list"
	Bool   Type = "bool"
	Switch Type = "switch" // a flag without a value, which is either given or not
	Text   Type = "text"
)

// Scope says whether the value of a knob is counted per GPU, per rank or over all ranks
// together, or that this depends on the user's code.
type Scope string

// The scopes.
const (
	PerDevice Scope = "device" // per GPU, even if one process drives several
	PerRank   Scope = "rank"   // per process
	Total     Scope = "total"  // over all ranks together
	Unsaid    Scope = "unsaid" // depends on the user's code; makes no difference if there is only one rank
)

// The names of the knobs that have a fixed meaning. A profile chooses the names of other
// knobs, which it uses for its checkpoints, resume, fallbacks, switch_off and trial.
const (
	Micro        = "micro"
	Accumulation = "accumulation"
	Global       = "global"
	Eval         = "eval"
	Devices      = "devices"   // ranks per machine that the framework starts by itself
	Nodes        = "nodes"     // machines on which the framework starts ranks by itself
	Length       = "steps"     // length of the training in optimizer steps; if not set, the length is given in epochs
	Rampup       = "rampup"    // START INCREMENT SAMPLES: the effective batch begins at START and grows in steps of INCREMENT to global
	Processes    = "processes" // ranks that a launcher starts, according to the launcher's configuration
)

// Counted lists the knobs that set the sizes of a step: micro-batch, accumulation and
// effective batch.
var Counted = []string{Micro, Accumulation, Global}

// typeOf returns the type of a knob whose profile does not give one.
func typeOf(name string) Type {
	switch name {
	case Micro, Accumulation, Global, Eval, Processes, Length:
		return Int
	case Rampup:
		return List
	}
	return Text
}

// Knob is a setting of a framework, with all the places where a command can set it. The
// command line takes precedence over the environment, and the environment over files.
type Knob struct {
	Flags    []string // spellings; headroom writes the first one
	Launcher string   // an option of the launcher in front, without leading dashes and with _ for -
	Env      string
	Paths    []string // keys in the configuration, such as trainer.max_steps; headroom writes the first one
	Type     Type
	Scope    Scope
	Default  string   // the value if the knob is absent; "" if not known
	Unset    []string // values that mean that the knob is absent
	Min      int      // smallest value allowed; 0 means 1
}

// Law is how the sizes of a step depend on each other: micro-batch, accumulation and
// effective batch.
type Law struct {
	Write   []string   // knobs to write when the micro-batch changes
	Derive  string     // the knob that the framework computes by itself from global
	Pin     []string   // knobs whose values follow from the micro-batch if they are not given; headroom writes them before it changes the micro-batch
	Exclude [][]string // knobs that must not be given together
	Require []string   // conditions that must hold, over micro, accumulation, global and world
}

// Layout is what a framework's checkpoints look like on disk.
type Layout struct {
	Root     string     // folder that has the checkpoints, with {knob} for a knob's value
	Glob     string     // pattern of a checkpoint below Root; may have several path elements
	Time     bool       // the newest checkpoint is the one written last, not the one with the largest number
	Complete [][]string // lists of patterns; for each list, a complete checkpoint has a file that matches one of its patterns
	Pointer  string     // file below Root that names the newest checkpoint
	Pointed  string     // path of the newest checkpoint, with {} for the name in Pointer
	Cadence  Cadence
	Saves    string   // knob that says when to save
	Every    string   // knob that says how many steps lie between two checkpoints
	Never    []string // values of Saves for which nothing is saved
	Within   []string // knobs and words which mean that the training saves, or resumes, within an epoch
}

// Cadence is how often a framework saves by default.
type Cadence string

// The cadences.
const (
	EverySteps Cadence = "steps"
	EveryEpoch Cadence = "epoch"
	NoSaves    Cadence = "none"
)

// Continuation is how a framework resumes from a checkpoint.
type Continuation struct {
	Mode  string            // "path", "auto" or "none"
	Set   map[string]string // knob → value, which may contain {checkpoint} and {root}
	Drop  []string          // knobs to remove, since they would make the training start over or overwrite files
	Patch []Patch
	Needs Need
}

// Patch changes one key of a checkpoint's JSON file, in a copy.
type Patch struct {
	File  string
	Key   string
	Value string // expression over micro, accumulation, global, world and devices
}

// Need is the oldest version of a package with which a framework can resume.
type Need struct {
	Package string
	Version string
}

// Unit is the unit in which a checkpoint records how far training has got.
type Unit string

// The units.
const (
	Steps   Unit = "step"
	Samples Unit = "sample"
	Epochs  Unit = "epoch"
	Micros  Unit = "micro-batch" // a different micro-batch would change the position within an epoch
)

// Normalised says whether a loss is divided by the accumulation.
type Normalised string

// The values of [Normalised].
const (
	IsNormalised  Normalised = "true"
	NotNormalised Normalised = "false"
	Prove         Normalised = "prove" // depends on the user's code, so the user has to check it
)

// Coupling is what a framework scales the learning rate by.
type Coupling string

// The couplings. Only with ByMicro does a change of the micro-batch change the learning
// rate.
const (
	ByProduct Coupling = "product"
	ByMicro   Coupling = "micro"
	ByTotal   Coupling = "total"
	ByNothing Coupling = "none"
)

// Fallback is a way, other than a smaller micro-batch, to reduce the memory that is
// needed. A profile lists its fallbacks in the order in which to try them.
type Fallback struct {
	Name  string
	Set   map[string]string // knob → value
	Host  bool              // it saves host memory, not the device's
	Exact bool              // the training stays the same bit for bit; if not, it is used only if the user allows it
}

// Recompute is the name of the fallback that recomputes activations to save device memory.
const Recompute = "recompute"

// Writes reports whether p has the knob and writes it when the micro-batch changes.
func (p Profile) Writes(knob string) bool {
	_, has := p.Knobs[knob]
	return has && slices.Contains(p.Law.Write, knob)
}

// Least returns the smallest value allowed.
func (k Knob) Least() int { return max(1, k.Min) }

// Signs returns a short text that says how the commands of p are recognised.
func (p Profile) Signs() string {
	var signs []string
	first := func(what string, words []string) {
		if len(words) == 1 {
			signs = append(signs, what+words[0])
		} else if len(words) > 1 {
			signs = append(signs, what+words[0]+", …")
		}
	}
	first("python -m ", p.Match.Modules)
	first("imports ", p.Match.Imports)
	first("", p.Match.Flags)
	if p.Layer {
		first("", p.Config.Flags)
	}
	if len(signs) == 0 {
		first("keys ", p.Match.Keys)
	}
	if len(signs) == 0 && p.Match.Argv != nil {
		signs = []string{"program " + p.Match.Argv.String()}
	}
	return strings.Join(signs, "; ")
}
