package configs

// Difference is a key whose value must not change within a run, but did.
type Difference struct {
	Key      string
	Old, New string // as written in a file
}

// Diff returns the differences that keep a run from being continued: the keys marked
// [Key.Fixed] whose values differ between old, the configuration that the run was started
// with, and the new configuration, which is called now. If the new configuration leaves a
// value open (a schedule.steps of auto, no data.fingerprint), that is not a difference;
// [Config.Inherit] takes the value over from old.
func Diff(old, now *Config) []Difference {
	var all []Difference
	for _, k := range keys {
		if !k.Fixed || !k.applies(old) || !k.applies(now) || k.open(now) {
			continue
		}
		a, b := inline(k.value(old).node()), inline(k.value(now).node())
		if a != b {
			all = append(all, Difference{k.Name, a, b})
		}
	}
	return all
}

// open reports whether c leaves the value of the key open, so that the run decides it.
func (k Key) open(c *Config) bool {
	switch k.Name {
	case "schedule.steps":
		return c.Schedule.Steps == 0
	case "data.fingerprint":
		return c.Data.Fingerprint == ""
	}
	return false
}

// Inherit copies the values that c leaves open from old, the configuration of the run
// that c continues. After that, a larger train.steps does not change the schedule of
// the steps already finished, and different data is refused when it is opened.
func (c *Config) Inherit(old *Config) {
	for _, k := range keys {
		if k.open(c) {
			// set reads every value that node writes.
			_ = k.value(c).set(k.value(old).node())
		}
	}
}
