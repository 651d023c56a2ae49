package wrap

import (
	"fmt"
	"slices"
)

// Warnings are what the user should know before the night rather than after it:
// that nothing will be saved, that nothing could be gone on from, and what would
// start the training again besides headroom.
func (m *Match) Warnings() []string {
	var all []string
	p := m.Profile
	switch saves, err := m.text(p.Checkpoints.Saves); {
	case err != nil:
		all = append(all, err.Error())
	case p.Resume.Mode == "none":
		all = append(all, fmt.Sprintf("no way to go on from a checkpoint is known of %s: after a failure it would begin anew; name one by --knob resume=FLAG --knob checkpoints=GLOB", p.Name))
	case slices.Contains(p.Checkpoints.Never, saves):
		all = append(all, fmt.Sprintf("%s %s saves no checkpoint: after a failure it would begin anew", m.places(p.Checkpoints.Saves), saves))
	case saves == "" && p.Checkpoints.Cadence == NoSaves:
		all = append(all, fmt.Sprintf("%s saves no checkpoint unless it is told to: after a failure it would begin anew", p.Name))
	}
	if p.Unit == Micros && !m.atEpochs() {
		all = append(all, p.Name+" counts in micro-batches, and saves within epochs: from such a checkpoint it goes on with the same micro-batch alone")
	}
	for _, knob := range sortedKeys(p.SwitchOff) {
		if given, err := m.givenOwn(knob); err == nil && given {
			all = append(all, fmt.Sprintf("%s is a retry of %s's own, which keeps neither the effective batch nor the step; headroom switches it off when it changes the command", m.places(knob), p.Name))
		}
	}
	return all
}
