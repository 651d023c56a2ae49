package profile

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Rehearsal says how to change a command into a trial, which trains only for a moment and
// leaves nothing behind. Values may contain {temporary}, which is a folder of the trial's
// own, and expressions over steps, micro, accumulation, global and world in braces, such
// as {steps*accumulation}.
type Rehearsal struct {
	Steps   int               // optimizer steps after which the trial ends by itself; 0 if no knob can limit it
	Set     map[string]string // knob → value
	IfGiven map[string]string // knob → value, for knobs that are set only if the command gives them
	Drop    []string          // knobs to remove
	Speed   *regexp.Regexp    // matches samples per second in the trial's output, as its group; the last match counts; may be nil
}

// Redirects reports whether a trial writes its output to a folder of its own.
func (r Rehearsal) Redirects() bool {
	for _, value := range r.Set {
		if strings.Contains(value, temporary) {
			return true
		}
	}
	return false
}

// trialSteps is how many optimizer steps a trial runs if a user's knob limits them. The
// optimizer's state exists from the second step on, and the third step shows that memory
// no longer grows.
const trialSteps = 3

// temporary stands for a trial's own folder in the values of a [Rehearsal].
const temporary = "{temporary}"

// named returns r adapted to the knobs that the user named. If r does not set them
// already, the output goes to the trial's own folder and the number of steps is limited.
// If plain is set, the trial does not resume from a checkpoint.
func (r Rehearsal) named(knobs map[string]bool, plain bool) Rehearsal {
	set := map[string]string{}
	for knob, value := range r.Set {
		set[knob] = value
	}
	if _, has := set["output"]; knobs["output"] && !has {
		set["output"] = temporary
	}
	if _, has := set[Length]; knobs[Length] && !has && r.Steps == 0 {
		r.Steps, set[Length] = trialSteps, "{steps}"
	}
	if knobs["resume"] && plain {
		r.Drop = []string{"resume"}
	}
	r.Set = set
	return r
}

var (
	stepsWithin = regexp.MustCompile(`\{[^{}]*\bsteps\b`)
	expressions = regexp.MustCompile(`\{([^{}]*)\}`)
)

// Filled returns a value of a [Rehearsal] in which everything in braces is replaced:
// {temporary} by folder, and expressions by their values.
func Filled(value, folder string, of Amounts) (string, error) {
	var failed error
	text := expressions.ReplaceAllStringFunc(value, func(in string) string {
		if in == temporary {
			return folder
		}
		n, err := Evaluate(strings.Trim(in, "{}"), of)
		if err != nil {
			failed = err
		}
		return strconv.Itoa(n)
	})
	return text, failed
}

// SpeedIn returns the samples per second that a trial's output reports, or 0 if it reports
// none.
func (r Rehearsal) SpeedIn(output []byte) float64 {
	if r.Speed == nil {
		return 0
	}
	all := r.Speed.FindAllSubmatch(output, -1)
	if len(all) == 0 {
		return 0
	}
	rate, err := strconv.ParseFloat(string(all[len(all)-1][1]), 64)
	if err != nil {
		return 0
	}
	return rate
}

func (r *reader) trial(key string, n *yaml.Node) {
	t := &r.p.Trial
	r.mapping(key, n, fields{"steps": r.positive(&t.Steps), "set": r.settings(&t.Set), "if_given": r.settings(&t.IfGiven),
		"drop": r.list(&t.Drop), "samples_per_second": r.group(&t.Speed)})
}

// group returns a function that reads a regular expression with exactly one group. The
// expression may match anywhere in a text.
func (r *reader) group(to **regexp.Regexp) func(string, *yaml.Node) {
	return func(key string, n *yaml.Node) {
		re, err := regexp.Compile(n.Value)
		if err != nil || re.NumSubexp() != 1 {
			r.add(n.Line, key, n.Value, "not a regular expression with one group, as in 'speed ([0-9.]+)'")
			return
		}
		*to = re
	}
}

func (r *reader) checkTrial() {
	t := &r.p.Trial
	limited := false
	for _, part := range []struct {
		key string
		set map[string]string
	}{{"trial.set", t.Set}, {"trial.if_given", t.IfGiven}} {
		for _, knob := range slices.Sorted(maps.Keys(part.set)) {
			value := part.set[knob]
			if slices.Contains(Counted, knob) {
				r.add(r.lines[part.key], part.key, knob, "must not be set; a trial has the effective batch of the training")
			}
			if _, err := Filled(value, "", Amounts{"steps": 1, Micro: 1, Accumulation: 1, Global: 1, "world": 1}); err != nil {
				r.add(r.lines[part.key], part.key+"."+knob, value, fmt.Sprintf("braces may hold the word temporary, or an expression over steps, micro, accumulation, global and world: %v", err))
			}
			limited = limited || part.key == "trial.set" && stepsWithin.MatchString(value)
		}
	}
	if (t.Steps > 0) != limited {
		r.add(r.lines["trial"], "trial.steps", strconv.Itoa(t.Steps), "give the number of steps, and write {steps} into the knob of trial.set that limits them")
	}
}
