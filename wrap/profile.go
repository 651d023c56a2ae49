package wrap

import (
	"slices"
	"strings"
)

// Profile is what is known about a framework: how its commands are told from others,
// where they set the batch size, what its checkpoints look like and how it resumes
// from one. docs/profiles.md describes each key of the language.
type Profile struct {
	Name        string
	Version     int  // of the profile language that it is written in
	Layer       bool // accompanies a framework instead of being one
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
	SwitchOff   map[string]string // competing retries: knob → the value that ends them
	Trial       Rehearsal

	File string // file that it was read from; "" if it is built in, or made of --knob alone
	Text []byte // content of that file, verbatim; must not be modified
}

// Signals are what a command is recognised by. They are independent of each other, and
// each counts once.
type Signals struct {
	Argv    lazyRegexp // matches the program's name; nil for none; +3
	Modules []string   // modules of python -m, or their parents; +3
	Imports []string   // words in the script's import lines; +2
	Flags   []string   // one of them is given; +2
	Keys    []string   // the configuration has all of them; +2
	Forbid  []string   // a configuration with one of them is something else
}

// Style is how an override is written on the command line.
type Style string

// The styles.
const (
	SpaceStyle  Style = "--k v" // or --k=v: argparse takes both
	EqualsStyle Style = "--k=v" // only this form
	HydraStyle  Style = "k=v"   // ++k=v sets or adds
	FileStyle   Style = "file"  // only in the configuration file
)

// Format is how a configuration file is written.
type Format string

// The formats in which a value can be edited without touching any other byte.
const (
	YAML   Format = "yaml"
	JSON   Format = "json"
	TOML   Format = "toml"
	Python Format = "python" // assignments at the top level
)

// ConfigFile is how a command names its configuration.
type ConfigFile struct {
	Format     Format   // format of files whose suffix does not show it; "" if there is no configuration
	Flags      []string // flags whose value is the file
	Keys       []string // keys of the framework's configuration whose value is the file; for layers
	Positional bool     // arguments with the suffix of a known format are configurations, too
	Sole       bool     // such an argument must be the only one, and then nothing can be overridden
	Script     bool     // the script's own assignments are the defaults
}

// Type is what a knob's value is.
type Type string

// The types.
const (
	Int    Type = "int" // an integer expression is accepted, too
	List   Type = "list"
	Bool   Type = "bool"
	Switch Type = "switch" // given or not, without a value
	Text   Type = "text"
)

// Scope is what an amount is counted over.
type Scope string

// The scopes.
const (
	PerDevice Scope = "device" // a GPU, even where one process drives several
	PerRank   Scope = "rank"   // a process
	Total     Scope = "total"  // all ranks together
	Unsaid    Scope = "unsaid" // depends on the user's code, and does not matter with one rank
)

// The knobs whose meaning is known. Other knobs have names that the profile
// chooses, for its output, resume, fallbacks and switch_off.
const (
	micro        = "micro"
	accumulation = "accumulation"
	global       = "global"
	eval         = "eval"
	devices      = "devices" // ranks that the framework starts on a machine by itself
	nodes        = "nodes"
	steps        = "steps"     // length of the training in optimizer steps; without it, in epochs
	rampup       = "rampup"    // START INCREMENT SAMPLES: the effective batch begins at START and grows in steps of INCREMENT to global
	processes    = "processes" // ranks of a launcher, in its own configuration
)

// counted lists the knobs that set the amounts of a step.
var counted = []string{micro, accumulation, global}

// typeOf is the type that a knob of this name has unless its profile gives one.
func typeOf(name string) Type {
	switch name {
	case micro, accumulation, global, eval, processes, steps:
		return Int
	case rampup:
		return List
	}
	return Text
}

// Knob is an argument, a variable or a key of a configuration. The command line
// beats the environment, which beats the file.
type Knob struct {
	Flags    []string // spellings; the first one is written
	Launcher string   // an option of the launcher in front, without leading dashes and with _ for -
	Env      string
	Paths    []string // keys in the configuration, such as trainer.max_steps; the first one is written
	Type     Type
	Scope    Scope
	Default  string   // the value that holds if the knob is absent; "" if not known
	Unset    []string // values that mean absent
	Min      int      // smallest amount allowed; 0 for 1
}

// Law is how the amounts of a step depend on each other.
type Law struct {
	Write   []string   // knobs to write when the micro-batch changes
	Derive  string     // the knob that the framework computes by itself, where global is given
	Pin     []string   // knobs that follow from others when absent, and so are written before the first change
	Exclude [][]string // knobs that must not be given together
	Require []string   // conditions that must hold, over micro, accumulation, global and world
}

// Layout is what a framework's checkpoints look like on disk.
type Layout struct {
	Root     string     // folder that has the checkpoints, with {knob} for a knob's value
	Glob     string     // pattern of a checkpoint below Root; may have several path elements
	Time     bool       // the newest is the one written last, not the one with the largest number
	Complete [][]string // lists of patterns: a complete checkpoint has a file that matches one of each list
	Pointer  string     // file below Root that names the newest checkpoint
	Pointed  string     // what the name in Pointer stands for; {} is the name
	Cadence  Cadence
	Saves    string   // knob that says when to save
	Every    string   // knob that says how many steps lie between two checkpoints
	Never    []string // values of Saves for which nothing is saved
	Within   []string // knobs and words that mean that it saves, or resumes, within an epoch
}

// Cadence is when a framework saves unless told otherwise.
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
	Set   map[string]string // knob → value, with {checkpoint} and {root}
	Drop  []string          // knobs that would make it start over or overwrite
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

// Unit is what a checkpoint counts in.
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

// The answers.
const (
	IsNormalised  Normalised = "true"
	NotNormalised Normalised = "false"
	Prove         Normalised = "prove"
)

// Coupling is what the learning rate is scaled by.
type Coupling string

// The couplings. A change of the micro-batch affects only ByMicro.
const (
	ByProduct Coupling = "product"
	ByMicro   Coupling = "micro"
	ByTotal   Coupling = "total"
	ByNothing Coupling = "none"
)

// Fallback is another way to need less memory; a profile lists them in the order in which to try them.
type Fallback struct {
	Name  string
	Set   map[string]string // knob → value
	Host  bool              // it saves host memory, not the device's
	Exact bool              // the training stays the same bit for bit; any other fallback is used only if the user allows it
}

// Recompute is the fallback that trades time for the device's memory.
const Recompute = "recompute"

// writes reports whether a change of the micro-batch may write the knob.
func (p Profile) writes(knob string) bool {
	_, has := p.Knobs[knob]
	return has && slices.Contains(p.Law.Write, knob)
}

// least is the smallest micro-batch allowed.
func (k Knob) least() int { return max(1, k.Min) }

// Signs are what a command is recognised by, in a few words.
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
		signs = []string{"program " + p.Match.Argv().String()}
	}
	return strings.Join(signs, "; ")
}
