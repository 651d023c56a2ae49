package wrap

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Rehearsal is how a command is made to train only for a moment, and to leave nothing
// behind. Values may contain {temporary}, which is a folder of the trial's own, and
// expressions over steps, micro, accumulation, global and world in braces, as in
// {steps*accumulation}.
type Rehearsal struct {
	Steps   int               // optimizer steps after which it ends by itself; 0 if it cannot be made to
	Set     map[string]string // knob → value
	IfGiven map[string]string // the same, for knobs that are set only where the command gives them
	Drop    []string          // knobs to take out
	Speed   lazyRegexp        // matches the trial's output, with the samples per second as its group; the last match counts; nil for none
}

// redirects reports whether a trial writes somewhere other than the training would.
func (r Rehearsal) redirects() bool {
	for _, value := range r.Set {
		if strings.Contains(value, temporary) {
			return true
		}
	}
	return false
}

// trialSteps is how many optimizer steps a trial makes where a knob sets their number:
// the optimizer's state exists from the second one on, and the third shows that memory
// no longer grows.
const trialSteps = 3

// temporary stands for a trial's own folder in the values of a [Rehearsal].
const temporary = "{temporary}"

// named adds what a user's knobs say about trials, where the profile says nothing.
func (r Rehearsal) named(knobs map[string]bool, plain bool) Rehearsal {
	set := map[string]string{}
	for knob, value := range r.Set {
		set[knob] = value
	}
	if _, has := set["output"]; knobs["output"] && !has {
		set["output"] = temporary
	}
	if _, has := set[steps]; knobs[steps] && !has && r.Steps == 0 {
		r.Steps, set[steps] = trialSteps, "{steps}"
	}
	if knobs["resume"] && plain {
		r.Drop = []string{"resume"}
	}
	r.Set = set
	return r
}

var (
	stepsWithin = lazily(`\{[^{}]*\bsteps\b`)
	expressions = lazily(`\{([^{}]*)\}`)
)

// filled is a value of a [Rehearsal] with its braces replaced by what they stand for.
func filled(value, folder string, of amounts) (string, error) {
	var failed error
	text := expressions().ReplaceAllStringFunc(value, func(in string) string {
		if in == temporary {
			return folder
		}
		n, err := evaluate(strings.Trim(in, "{}"), of)
		if err != nil {
			failed = err
		}
		return strconv.Itoa(n)
	})
	return text, failed
}

// speed is the samples per second that the output of a trial reports, 0 if it reports
// none.
func (r Rehearsal) speed(output []byte) float64 {
	if r.Speed == nil {
		return 0
	}
	all := r.Speed().FindAllSubmatch(output, -1)
	if len(all) == 0 {
		return 0
	}
	rate, err := strconv.ParseFloat(string(all[len(all)-1][1]), 64)
	if err != nil {
		return 0
	}
	return rate
}

func (r *profileReader) trial(key string, n *yaml.Node) {
	t := &r.p.Trial
	r.mapping(key, n, fields{"steps": r.positive(&t.Steps), "set": r.settings(&t.Set), "if_given": r.settings(&t.IfGiven),
		"drop": r.list(&t.Drop), "samples_per_second": r.group(&t.Speed)})
}

// group reads a regular expression with one group, which may match anywhere.
func (r *profileReader) group(to *lazyRegexp) func(string, *yaml.Node) {
	return func(key string, n *yaml.Node) {
		re, err := regexp.Compile(n.Value)
		if err != nil || re.NumSubexp() != 1 {
			r.add(n.Line, key, n.Value, "not a regular expression with one group, as in 'speed ([0-9.]+)'")
			return
		}
		*to = func() *regexp.Regexp { return re }
	}
}

func (r *profileReader) checkTrial() {
	t := &r.p.Trial
	limited := false
	for _, part := range []struct {
		key string
		set map[string]string
	}{{"trial.set", t.Set}, {"trial.if_given", t.IfGiven}} {
		for _, knob := range sortedKeys(part.set) {
			value := part.set[knob]
			if slices.Contains(counted, knob) {
				r.add(r.lines[part.key], part.key, knob, "must not be set; a trial has the effective batch of the training")
			}
			if _, err := filled(value, "", amounts{"steps": 1, micro: 1, accumulation: 1, global: 1, "world": 1}); err != nil {
				r.add(r.lines[part.key], part.key+"."+knob, value, fmt.Sprintf("braces may hold the word temporary, or an expression over steps, micro, accumulation, global and world: %v", err))
			}
			limited = limited || part.key == "trial.set" && stepsWithin().MatchString(value)
		}
	}
	if (t.Steps > 0) != limited {
		r.add(r.lines["trial"], "trial.steps", strconv.Itoa(t.Steps), "give the number of steps, and write {steps} into the knob of trial.set that limits them")
	}
}
