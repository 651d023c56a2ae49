package wrap

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"headroom/memory"
	"headroom/recovery"
	"headroom/wrap/command"
	"headroom/wrap/profile"
)

// Explanation is all that headroom knows about a command before it runs. It is plain data
// that can be shown to the user or encoded as JSON.
type Explanation struct {
	Command  []string          `json:"command"`
	Missing  string            `json:"missing,omitempty"` // what of the command does not exist, so that it cannot run
	Why      string            `json:"why,omitempty"`     // why nothing would be changed
	Suggest  []string          `json:"suggest,omitempty"` // values for --knob, guessed from the options of the command and its script; nothing relies on them
	Profile  string            `json:"profile,omitempty"`
	File     string            `json:"file,omitempty"`   // file that the profile was read from; "" if it is built in
	Scores   []Score           `json:"scores,omitempty"` // best first; may be empty with --profile or --knob
	Launch   Launched          `json:"launch"`
	Plan     *recovery.Plan    `json:"plan,omitempty"`    // the plan that the command asks for; nil if it could not be determined
	Unknown  []string          `json:"unknown,omitempty"` // the parts of the plan that could not be determined
	Knobs    []KnobAt          `json:"knobs,omitempty"`
	Smaller  *Smaller          `json:"smaller,omitempty"` // what would change if memory ran out; nil if there is no smaller micro-batch, or none is known
	Saved    *SavedAt          `json:"checkpoints,omitempty"`
	Warnings []command.Warning `json:"warnings,omitempty"`
	InPlace  bool              `json:"in_place"` // whether a PyTorch step that runs out of memory would be run again in pieces; set by the caller, who starts the worker
}

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

// Smaller is what the next smaller micro-batch would change.
type Smaller struct {
	Plan    recovery.Plan `json:"plan"`
	Changes []Change      `json:"changes,omitempty"`
	Diff    string        `json:"diff,omitempty"`
	Prove   []string      `json:"prove,omitempty"`   // conditions that must hold but are not known to hold
	Trusted bool          `json:"trusted,omitempty"` // the user vouches for the conditions in Prove; otherwise any of them keeps headroom from changing anything
	Refused string        `json:"refused,omitempty"` // why nothing would be changed after all
}

// SavedAt describes where a command's checkpoints are, and how the command would resume
// from one.
type SavedAt struct {
	Where   string       `json:"where,omitempty"`   // pattern of their paths; "" if it is not known
	All     []Checkpoint `json:"all,omitempty"`     // the checkpoints that exist, whichever run wrote them; newest first
	Newest  *Checkpoint  `json:"newest,omitempty"`  // the newest complete one
	Mode    string       `json:"mode"`              // how the command resumes, according to its profile: "path", "auto" or "none"
	Set     []string     `json:"set,omitempty"`     // settings that would make the command resume, such as "--resume {checkpoint}"
	Diff    string       `json:"diff,omitempty"`    // the changes to the command that would make it resume from Newest
	Refused string       `json:"refused,omitempty"` // why the command could not resume from Newest, or why checkpoints cannot be looked for
}

// Look gives Explain access to information that the command itself does not contain.
type Look struct {
	Files fs.FS // rooted at /; nil to read none
	Now   time.Time
	Free  func(dir string) (free memory.Bytes, known bool) // returns the free space on the disk of a folder, which may not exist yet; nil to skip the check of the disk
}

// Explain says what is known about w. m is the match for w's command, or nil if the
// command was not recognised. why is the error that kept headroom from understanding the
// command, or nil if there was none. If why is not nil, w.Match must be nil. Explain
// starts no process and writes no file.
func Explain(w *Wrapped, m *Match, why error, look Look) Explanation {
	e := Explanation{Command: w.Command.Masked(), Missing: w.Command.Missing()}
	if m == nil {
		m = e.unrecognised(w.Command, why, look)
	} else {
		e.Profile, e.File, e.Scores = m.Profile.Name, m.Profile.File, m.Scores
	}
	e.Launch = m.launchedAs()
	if why != nil {
		e.because(why)
	}
	if e.Profile == "" {
		e.Suggest = m.suggestions()
	}
	if e.Profile != "" {
		e.Knobs = m.knobs()
		e.Warnings = m.Warnings()
		e.Saved = m.saved(w, look, &e.Warnings)
	}
	if w.Match != nil {
		e.Plan = &w.Asked
		if asked, err := m.Plan(); err == nil {
			e.Unknown = asked.Unknown
		}
		e.Smaller = w.smaller()
	}
	e.Warnings = append(e.Warnings, w.Command.Warnings()...)
	return e
}

// unrecognised returns a match without a profile, with as much of the command as could be
// read.
func (e *Explanation) unrecognised(c command.Line, why error, look Look) *Match {
	m := &Match{Command: c, given: Given{Files: look.Files}}
	if launch, err := command.Peel(c); err == nil {
		m.Launch = launch
	}
	return m
}

// because records the error why. If the error has scores, they go into a field of their
// own.
func (e *Explanation) because(why error) {
	e.Why = why.Error()
	if unknown := (*NotRecognisedError)(nil); errors.As(why, &unknown) {
		e.Why, e.Scores = "not recognised: "+unknown.Reason, unknown.Scores
	}
}

func (m *Match) launchedAs() Launched {
	l := Launched{By: m.Launch.Layers}
	if len(m.Launch.Script+m.Launch.Module+m.Launch.Program) == 0 {
		return l
	}
	l.Program = m.Launch.Name()
	for _, p := range m.Layers {
		l.Layers = append(l.Layers, p.Name)
	}
	n, why, err := m.ranks()
	if err != nil {
		why = err.Error()
	}
	l.Ranks, l.Why = n, why
	return l
}

// kinds maps each kind of place to the name that an explanation uses for it.
var kinds = map[placeKind]string{absent: "absent", byDefault: "default", inFile: "file", inEnv: "environment", inArgument: "argument"}

// knobs returns the profile's knobs. First come those for the batch sizes, the
// accumulation, the length of the training, the devices and the nodes.
func (m *Match) knobs() []KnobAt {
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
			k.Where = m.places(name)
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

// smaller returns what the next smaller micro-batch would change, or nil if there is
// none.
func (w *Wrapped) smaller() *Smaller {
	below := w.Asked.Below(w.Asked.Largest())
	if below == 0 {
		return nil
	}
	s := &Smaller{Plan: w.Asked.WithMicro(below), Trusted: w.Trust}
	next, err := w.Prepare(s.Plan, nil)
	if unproven := (*UnprovenError)(nil); err != nil && !errors.As(err, &unproven) {
		s.Refused = err.Error()
		return s
	}
	s.Changes, s.Diff, s.Prove = next.Changes, next.Diff(w.Command), next.Prove
	return s
}

// saved looks for checkpoints, and checks the disk that they are on. It adds warnings
// about that disk to warn.
func (m *Match) saved(w *Wrapped, look Look, warn *[]command.Warning) *SavedAt {
	s := &SavedAt{Mode: m.Profile.Resume.Mode}
	found, err := m.Checkpoints(look.Now, Past{})
	if err != nil {
		s.Refused = err.Error()
		return s
	}
	s.Where, s.All, s.Newest = filepath.Join(found.Root, m.Profile.Checkpoints.Glob), found.All, found.Newest
	for _, knob := range slices.Sorted(maps.Keys(m.Profile.Resume.Set)) {
		s.Set = append(s.Set, fmt.Sprintf("%s %s", m.places(knob), m.Profile.Resume.Set[knob]))
	}
	each := memory.Bytes(0)
	if s.Newest != nil {
		each = s.Newest.Size
		s.goesOn(w)
	}
	if look.Free != nil {
		if free, known := look.Free(m.Command.From(found.Root)); known {
			*warn = append(*warn, room(found.Root, free, each)...)
		}
	}
	return s
}

// goesOn fills in what resuming from the newest checkpoint would change, or why that is
// impossible.
func (s *SavedAt) goesOn(w *Wrapped) {
	if w.Match == nil {
		return
	}
	next, err := w.Match.Rewrite(w.Asked, Resume{Checkpoint: s.Newest})
	if err != nil {
		s.Refused = err.Error()
		return
	}
	s.Diff = next.Diff(w.Command)
}
