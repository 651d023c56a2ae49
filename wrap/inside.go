package wrap

import (
	"cmp"
	"path"
	"strings"

	"headroom/memory"
)

// FromInside is the outcome with what a worker in the process saw: a memory failure
// after which the training made no further step, and what had been allocated between
// steps; where is the line of the user's code that failed. The worker's numbers are the
// device's own, whereas an outcome has only what a message said. An end without an
// error of its own is put down to the memory failure that came before it. Leaked memory
// is free again in a new process, whichever phase had too little memory because of the
// leak.
func (o Outcome) FromInside(seen memory.Evidence, where string) Outcome {
	f := seen.Failure
	if f.Stats.Capacity <= 0 || o.Kind != OutOfMemory && o.Kind != Failed {
		return o
	}
	if where != "" {
		where = " (" + where + ")"
	}
	reason := "the worker inside PyTorch saw the failure: " + f.Error() + where
	f.Micro = 0 // the number of rows of a call, which is not the command's own micro-batch
	evidence := memory.Evidence{Failure: f}
	switch {
	case o.Kind == OutOfMemory && o.Evidence != nil:
		evidence = *o.Evidence
		evidence.Failure = f
		if o.Evidence.Failure.Phase != memory.PhaseUnknown {
			evidence.Failure.Phase = o.Evidence.Failure.Phase
		}
	case o.Kind == Failed && o.Error != "":
		return o // the command says itself what ended it
	case o.Kind == Failed:
		o.Kind, o.Confidence = OutOfMemory, Likely
	}
	evidence.Boundary, evidence.Every = seen.Boundary, seen.Every
	o.Evidence, o.Reasons = &evidence, append([]string{reason}, o.Reasons...)
	if verdict := memory.Diagnose(evidence); verdict.Cause == memory.Leak {
		o.Hopeless, o.Reasons = "", append([]string{verdict.Why}, o.Reasons...)
		o.Hint = cmp.Or(o.Hint, "a warning above names what grows; loss.item() or loss.detach() keeps a value without the graph that made it")
	}
	return o
}

// Isolated is the option that keeps a Python interpreter in the command from seeing what
// is added to its environment, "" if none does.
func (c Command) Isolated() string {
	for i, word := range c.Args {
		if !isPython(path.Base(word)) {
			continue
		}
		if option := isolating(c.Args[i+1:]); option != "" {
			return option
		}
	}
	return ""
}

// isolating is the first of Python's own options that makes it ignore the environment
// or leave out the site module, "" if there is none.
func isolating(options []string) string {
	for i := 0; i < len(options); i++ {
		option := options[i]
		if !strings.HasPrefix(option, "-") || strings.HasPrefix(option, "--") || option == "-" {
			return ""
		}
		letters, value := option[1:], strings.IndexAny(option[1:], "cmWX")
		if value >= 0 {
			letters = letters[:value] // the rest is a value
		}
		if strings.ContainsAny(letters, "IES") {
			return option
		}
		if value < 0 {
			continue
		}
		if strings.ContainsAny(option[value+1:value+2], "cm") {
			return "" // the program begins
		}
		if value == len(option)-2 {
			i++ // the value is the next word
		}
	}
	return ""
}
