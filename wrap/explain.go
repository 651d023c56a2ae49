package wrap

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"time"

	"headroom/memory"
	"headroom/recovery"
	"headroom/wrap/checkpoints"
	"headroom/wrap/command"
	"headroom/wrap/rewrite"
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
	Scores   []rewrite.Score   `json:"scores,omitempty"` // best first; may be empty with --profile or --knob
	Launch   rewrite.Launched  `json:"launch"`
	Plan     *recovery.Plan    `json:"plan,omitempty"`    // the plan that the command asks for; nil if it could not be determined
	Unknown  []string          `json:"unknown,omitempty"` // the parts of the plan that could not be determined
	Knobs    []rewrite.KnobAt  `json:"knobs,omitempty"`
	Smaller  *Smaller          `json:"smaller,omitempty"` // what would change if memory ran out; nil if there is no smaller micro-batch, or none is known
	Saved    *SavedAt          `json:"checkpoints,omitempty"`
	Warnings []command.Warning `json:"warnings,omitempty"`
	InPlace  bool              `json:"in_place"` // whether a PyTorch step that runs out of memory would be run again in pieces; set by the caller, who starts the worker
}

// Smaller is what the next smaller micro-batch would change.
type Smaller struct {
	Plan    recovery.Plan    `json:"plan"`
	Changes []rewrite.Change `json:"changes,omitempty"`
	Diff    string           `json:"diff,omitempty"`
	Prove   []string         `json:"prove,omitempty"`   // conditions that must hold but are not known to hold
	Trusted bool             `json:"trusted,omitempty"` // the user vouches for the conditions in Prove; otherwise any of them keeps headroom from changing anything
	Refused string           `json:"refused,omitempty"` // why nothing would be changed after all
}

// SavedAt describes where a command's checkpoints are, and how the command would resume
// from one.
type SavedAt struct {
	Where   string                   `json:"where,omitempty"`   // pattern of their paths; "" if it is not known
	All     []checkpoints.Checkpoint `json:"all,omitempty"`     // the checkpoints that exist, whichever run wrote them; newest first
	Newest  *checkpoints.Checkpoint  `json:"newest,omitempty"`  // the newest complete one
	Mode    string                   `json:"mode"`              // how the command resumes, according to its profile: "path", "auto" or "none"
	Set     []string                 `json:"set,omitempty"`     // settings that would make the command resume, such as "--resume {checkpoint}"
	Diff    string                   `json:"diff,omitempty"`    // the changes to the command that would make it resume from Newest
	Refused string                   `json:"refused,omitempty"` // why the command could not resume from Newest, or why checkpoints cannot be looked for
}

// Look gives [Wrapped.Explain] access to information that the command itself does not contain.
type Look struct {
	Files fs.FS // rooted at /; nil to read none
	Now   time.Time
	Free  func(dir string) (free memory.Bytes, known bool) // returns the free space on the disk of a folder, which may not exist yet; nil to skip the check of the disk
}

// Explain says what is known about the command. It starts no process and writes no file.
func (w *Wrapped) Explain(look Look) Explanation {
	e, m := Explanation{Command: w.Line.Masked(), Missing: w.Line.Missing()}, w.Seen
	if m == nil { // as much of the command as can be read
		m = &rewrite.Match{Command: w.Line, Given: rewrite.Given{Files: look.Files}}
		if launch, err := command.Peel(w.Line); err == nil {
			m.Launch = launch
		}
	} else {
		e.Profile, e.File, e.Scores = m.Profile.Name, m.Profile.File, m.Scores
	}
	e.Launch = rewrite.LaunchedAs(m)
	if w.Why != nil {
		e.because(w.Why)
	}
	if e.Profile == "" {
		e.Suggest = rewrite.Suggestions(m)
	}
	if e.Profile != "" {
		e.Knobs = rewrite.Knobs(m)
		e.Warnings = rewrite.Warnings(m)
		e.Saved = savedAt(m, w, look, &e.Warnings)
	}
	if w.Match != nil {
		e.Plan = &w.Asked
		if asked, err := rewrite.Asks(m); err == nil {
			e.Unknown = asked.Unknown
		}
		e.Smaller = w.smaller()
	}
	e.Warnings = append(e.Warnings, w.Line.Warnings()...)
	return e
}

// because records the error why. If the error has scores, they go into a field of their
// own.
func (e *Explanation) because(why error) {
	e.Why = why.Error()
	if unknown := (*rewrite.NotRecognisedError)(nil); errors.As(why, &unknown) {
		e.Why, e.Scores = "not recognised: "+unknown.Reason, unknown.Scores
	}
}

// smaller returns what the next smaller micro-batch would change, or nil if there is
// none.
func (w *Wrapped) smaller() *Smaller {
	below := w.Asked.Below(w.Asked.Largest())
	if below == 0 {
		return nil
	}
	s := &Smaller{Plan: w.Asked.WithMicro(below), Trusted: w.Trust}
	next, err := w.prepare(s.Plan, nil)
	if unproven := (*UnprovenError)(nil); err != nil && !errors.As(err, &unproven) {
		s.Refused = err.Error()
		return s
	}
	s.Changes, s.Diff, s.Prove = next.Changes, next.Diff(w.Line), next.Prove
	return s
}

// savedAt looks for checkpoints, and checks the disk that they are on. It adds warnings
// about that disk to warn.
func savedAt(m *rewrite.Match, w *Wrapped, look Look, warn *[]command.Warning) *SavedAt {
	s := &SavedAt{Mode: m.Profile.Resume.Mode}
	found, err := checkpoints.Find(m, look.Now, checkpoints.Past{})
	if err != nil {
		s.Refused = err.Error()
		return s
	}
	s.Where, s.All, s.Newest = filepath.Join(found.Root, m.Profile.Checkpoints.Glob), found.All, found.Newest
	for _, knob := range slices.Sorted(maps.Keys(m.Profile.Resume.Set)) {
		s.Set = append(s.Set, fmt.Sprintf("%s %s", m.Where(knob), m.Profile.Resume.Set[knob]))
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
	next, err := rewrite.To(w.Match, w.Asked, rewrite.Resume{From: s.Newest.Path, Problem: s.Newest.Problem})
	if err != nil {
		s.Refused = err.Error()
		return
	}
	s.Diff = next.Diff(w.Line)
}

// leastRoom is how much free space is enough for checkpoints of unknown size.
const leastRoom = memory.GiB

// room returns a warning if the disk that holds the folder root has too little free space
// for the next checkpoints. each is the size of one checkpoint, or 0 if there is none yet.
func room(root string, free, each memory.Bytes) []command.Warning {
	var w command.Warnings
	root = path.Clean(root)
	switch {
	case each > 0 && free < 2*each:
		w.Add("disk", "a checkpoint takes %v, and only %v is free on the disk that holds %s: make room, or save to another disk", each, free, root)
	case each == 0 && free < leastRoom:
		w.Add("disk", "only %v is free on the disk that holds %s: make room for checkpoints, or save to another disk", free, root)
	}
	return w
}
