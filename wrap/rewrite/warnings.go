package rewrite

import (
	"maps"
	"slices"
	"strings"

	"headroom/wrap/command"
	"headroom/wrap/profile"
)

// Warnings returns warnings about the profile and the knobs: that no checkpoint will be
// saved or could be resumed from, that the framework would itself start the training again,
// and that the micro-batch can hardly be made smaller. [command.Line.Warnings] returns others.
func Warnings(m *Match) []command.Warning {
	var w command.Warnings
	saving(m, &w)
	resuming(m, &w)
	overwriting(m, &w)
	for _, knob := range slices.Sorted(maps.Keys(m.Profile.SwitchOff)) {
		given, err := m.Sets(knob)
		if value, _ := m.Text(knob); err == nil && given && !strings.EqualFold(value, m.Profile.SwitchOff[knob]) {
			w.Add("retries", "%s makes %s retry by itself, which keeps neither the effective batch nor the step count; headroom switches the retry off when it changes the command", m.Where(knob), m.Profile.Name)
		}
	}
	dividing(m, &w)
	return w
}

// saving adds warnings if checkpoints will not be written, or will be far apart.
func saving(m *Match, w *command.Warnings) {
	const about = "checkpoints"
	p := m.Profile
	saves, err := m.Text(p.Checkpoints.Saves)
	switch {
	case err != nil:
		w.Add(about, "%v", err)
	case p.Resume.Mode == "none":
		w.Add(about, "headroom knows no way to resume %s from a checkpoint: after a failure it would start over; say how to resume, with --knob resume=FLAG --knob checkpoints=GLOB", p.Name)
	case slices.Contains(p.Checkpoints.Never, saves):
		w.Add(about, "%s %s saves no checkpoint: after a failure it would start over", m.Where(p.Checkpoints.Saves), saves)
	case saves == "" && p.Checkpoints.Cadence == profile.NoSaves:
		w.Add(about, "%s saves no checkpoint unless it is told to: after a failure it would start over", p.Name)
	case saves == string(profile.EveryEpoch), saves == "" && atEpochs(m):
		w.Add(about, "checkpoints are written only at the ends of epochs: a failure costs up to a whole epoch")
	case saves == "" || saves == string(profile.EverySteps):
		farApart(m, w)
	}
}

// resuming adds warnings if the command could not resume from a checkpoint, or only with the
// same micro-batch.
func resuming(m *Match, w *command.Warnings) {
	const about = "checkpoints"
	p := m.Profile
	if need := p.Resume.Needs; need.Package != "" {
		switch have := version(m, need.Package); {
		case have == "":
			w.Add(about, "%s can resume from a checkpoint only with %s %s or later, but the installed version is not known", p.Name, need.Package, need.Version)
		case profile.Older(have, need.Version):
			w.Add(about, "%s can resume from a checkpoint only with %s %s or later, but %s is installed: a late failure would end the run", p.Name, need.Package, need.Version, have)
		}
	}
	switch {
	case p.Unit == profile.Micros && p.Name == "plain":
		w.Add(about, "they count micro-batches (--knob unit=micro-batch): the command can resume from one only with the same micro-batch")
	case p.Unit == profile.Micros && !atEpochs(m):
		w.Add(about, "%s counts in micro-batches, and saves or resumes within epochs: from a checkpoint within an epoch it can resume only with the same micro-batch", p.Name)
	}
}

// farApart adds a warning if the number of steps between two checkpoints is large
// compared with the number of steps in the whole training.
func farApart(m *Match, w *command.Warnings) {
	const about, often = "checkpoints", 10
	every, err := m.Text(m.Profile.Checkpoints.Every)
	length, failed := m.amount(m.Profile, m.files, profile.Length)
	apart := command.Number(every)
	where := m.Where(m.Profile.Checkpoints.Every)
	switch {
	case err != nil || failed != nil || length == 0 || apart == 0:
	case apart >= length:
		w.Add(about, "a checkpoint every %d steps (%s) comes too late for training that ends at step %d: after a failure it would start over", apart, where, length)
	case apart*often > length:
		w.Add(about, "a checkpoint every %d steps, of %d in all (%s): a failure costs up to %d steps", apart, length, where, apart)
	}
}

// overwriting adds warnings about checkpoints that another start or a save would overwrite.
func overwriting(m *Match, w *command.Warnings) {
	layout := m.Profile.Checkpoints
	for _, knob := range m.Profile.Resume.Drop {
		given, err := m.Sets(knob)
		if value, _ := m.Text(knob); err == nil && given && !strings.EqualFold(value, m.Profile.Knobs[knob].Default) {
			w.Add("checkpoints", "%s makes the command start from scratch each time and overwrite what is there; headroom removes this flag only when resuming from a checkpoint", m.Where(knob))
		}
	}
	if layout.Glob != "" && !strings.ContainsAny(layout.Glob, "*?[") {
		w.Add("checkpoints", "%s is a single file, which every save overwrites: a failure during a save destroys it", layout.Glob)
	}
}

// dividing adds a warning if no smaller micro-batch is possible, or only a much smaller one.
func dividing(m *Match, w *command.Warnings) {
	const about, far = "batch", 3
	asked, err := Asks(m)
	if err != nil {
		return
	}
	now := asked.Plan.Largest()
	below := asked.Plan.Below(now)
	least := m.Profile.Knobs[profile.Micro].Least()
	switch {
	case now == 1:
		w.Add(about, "the micro-batch is 1 already: if memory runs out there is no smaller one")
	case below < least:
		w.Add(about, "the micro-batch is %d, and %s needs at least %d: if memory runs out there is no smaller one", now, m.Profile.Name, least)
	case below*far < now:
		w.Add(about, "the next micro-batch below %d that keeps the effective batch %d is %d: an effective batch such as %d, which has more divisors, would cost less speed",
			now, asked.Plan.Effective, below, rounder(asked.Plan.Share(0))*asked.Plan.World)
	}
}

// rounder returns the largest power of two that does not exceed n, or 1 if n is less.
func rounder(n int) int {
	power := 1
	for power <= n/2 {
		power *= 2
	}
	return power
}
