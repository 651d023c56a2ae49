package rewrite

import (
	"fmt"
	"strings"

	"headroom/recovery"
	"headroom/wrap/command"
	"headroom/wrap/profile"
)

// Asked is the optimizer step that a command asks for.
type Asked struct {
	Plan         recovery.Plan // uniform: a framework runs micro-batches of one size
	Accumulation int           // micro-batches per step on each rank
	Unknown      []string      // what could not be determined; if that includes the number of ranks, Plan is for one rank
}

// WorldError says that the number of ranks is needed but is not known.
type WorldError struct {
	Knob   string // the knob whose value is counted over all ranks
	Reason string // why the number of ranks is not known
}

func (e *WorldError) Error() string {
	return fmt.Sprintf("the number of ranks is not known (%s), and %s depends on it; give it with --world", e.Reason, e.Knob)
}

// InexactError says that a change of the micro-batch would change what is trained. It
// also names the nearest micro-batches, if there are any, that would keep the effective
// batch.
type InexactError struct {
	Asked   recovery.Plan
	Reason  string
	Nearest []int // the micro-batches nearest to the one asked for that keep the effective batch; may be empty
}

func (e *InexactError) Error() string {
	text := fmt.Sprintf("micro-batch %d: %s", e.Asked.Micro, e.Reason)
	switch len(e.Nearest) {
	case 0:
		return text
	case 1:
		return fmt.Sprintf("%s; the nearest micro-batch that keeps the effective batch is %d", text, e.Nearest[0])
	}
	return fmt.Sprintf("%s; the nearest micro-batches that keep the effective batch are %d and %d", text, e.Nearest[0], e.Nearest[1])
}

// step holds the sizes of an optimizer step that a command asks for.
type step struct {
	micro, accumulation, global int // as written, or by default; 0 if absent
	ranks                       int // number of data-parallel ranks; 0 if not known
	why                         string
	perMicro, perRank           int // on each rank: samples per micro-batch, and micro-batches per step
	common                      int // common divisor of all effective batches of a schedule; 0 if the effective batch is constant
}

// Asks returns the plan that the command asks for now. The error is a [*KnobError] if a
// knob cannot be read or if values contradict each other, and a [*WorldError] if the
// plan depends on the number of ranks and that number is not known.
func Asks(m *Match) (Asked, error) {
	if err := mistyped(m); err != nil {
		return Asked{}, err
	}
	s, err := stepOf(m)
	if err != nil {
		return Asked{}, err
	}
	a := Asked{Accumulation: s.perRank}
	world := max(1, s.ranks)
	a.Plan = recovery.Plan{Effective: s.perMicro * s.perRank * world, World: world, Micro: s.perMicro, Uniform: true, Common: s.common}
	if s.ranks == 0 {
		a.Unknown = append(a.Unknown, "ranks: "+s.why)
	}
	if _, has := m.Profile.Knobs[profile.Eval]; has {
		n, err := m.amount(m.Profile, m.files, profile.Eval)
		if err != nil || n == 0 {
			a.Unknown = append(a.Unknown, "evaluation batch: not given, and its default is not known")
		}
		a.Plan.Eval = n
	}
	return a, nil
}

// stepOf reads the knobs and converts their values to values per rank.
func stepOf(m *Match) (step, error) {
	s, err := sizesOf(m)
	if err != nil {
		return s, err
	}
	given, err := m.Sets(profile.Accumulation)
	if err != nil {
		return s, err
	}
	derived := s.global > 0 && !given
	if err := schedule(m, &s, derived); err != nil {
		return s, err
	}
	if derived {
		err = derive(m, &s)
	} else {
		err = accumulate(m, &s)
	}
	if err != nil {
		return s, err
	}
	return s, agree(m, s)
}

// accumulate takes the accumulation from its knob; if the command does not give it, it is 1.
func accumulate(m *Match, s *step) (err error) {
	s.perRank = 1
	if _, has := m.Profile.Knobs[profile.Accumulation]; has && s.accumulation == 0 && s.global == 0 && m.Profile.Law.Derive == "" {
		return &KnobError{profile.Accumulation, m.Where(profile.Accumulation), "", "not given, and its default is not known; give it, even if it is 1"}
	}
	if s.accumulation > 0 {
		if s.perRank, err = perRank(m, profile.Accumulation, s.accumulation, *s); err != nil {
			return err
		}
	}
	if s.global > 0 && s.ranks == 0 {
		return &WorldError{profile.Global, s.why}
	}
	if g := s.total(); s.global > 0 && g != s.global*globalRanks(m, *s) {
		return &KnobError{profile.Global, m.Where(profile.Global), fmt.Sprint(s.global), fmt.Sprintf("is not micro-batch %d × accumulation %d × %d ranks", s.perMicro, s.perRank, s.ranks)}
	}
	return nil
}

// sizesOf reads the knobs, and the number of ranks. It leaves open the accumulation on each rank.
func sizesOf(m *Match) (s step, err error) {
	if s.ranks, s.why, err = ranksOf(m); err != nil {
		return s, err
	}
	to := map[string]*int{profile.Micro: &s.micro, profile.Accumulation: &s.accumulation, profile.Global: &s.global}
	for _, name := range profile.Counted {
		if *to[name], err = m.amount(m.Profile, m.files, name); err != nil {
			return s, err
		}
	}
	if s.micro == 0 {
		return s, &KnobError{profile.Micro, m.Where(profile.Micro), "", "not given, and its default is not known; give it"}
	}
	s.perMicro, err = perRank(m, profile.Micro, s.micro, s)
	return s, err
}

// derive computes the accumulation from the effective batch, as the framework does.
func derive(m *Match, s *step) error {
	if s.ranks == 0 && m.Profile.Knobs[profile.Global].Scope == profile.Total {
		return &WorldError{profile.Global, s.why}
	}
	share := s.global * globalRanks(m, *s) / max(1, s.ranks)
	if share*max(1, s.ranks) != s.global*globalRanks(m, *s) || share%s.perMicro != 0 {
		return &KnobError{profile.Global, m.Where(profile.Global), fmt.Sprint(s.global), fmt.Sprintf("is not a multiple of micro-batch %d × %d ranks, so the batch actually trained has a different size", s.perMicro, max(1, s.ranks))}
	}
	s.perRank = share / s.perMicro
	return nil
}

// schedule reads the schedule by which the effective batch grows, if there is one. The
// framework computes the accumulation of each step, so the micro-batch times the number
// of ranks must divide every effective batch of the schedule. derived says whether the
// framework computes the accumulation at all.
func schedule(m *Match, s *step, derived bool) error {
	at, err := m.find(m.Profile, m.files, profile.Rampup)
	if err != nil || at.text == "" {
		return err
	}
	refused := func(format string, args ...any) error {
		return &KnobError{profile.Rampup, at.where, at.text, fmt.Sprintf(format, args...)}
	}
	if !derived {
		return refused("needs %s, the size that the effective batch grows to, and cannot be combined with accumulation", m.Where(profile.Global))
	}
	all, err := profile.AmountsOf(at.text)
	if err != nil || len(all) != 3 {
		return refused("must be START INCREMENT SAMPLES, three numbers of at least 1")
	}
	last := s.global * globalRanks(m, *s)
	s.common = divisor(divisor(all[0], all[1]), last)
	if parallel := s.perMicro * max(1, s.ranks); s.common%parallel != 0 {
		return refused("grows from %d in steps of %d to %d, and micro-batch %d × %d ranks does not divide all of these sizes", all[0], all[1], last, s.perMicro, max(1, s.ranks))
	}
	return nil
}

// divisor returns the greatest common divisor of a and b, by Euclid's algorithm.
func divisor(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// globalRanks returns the number by which to multiply the value of the global knob to get
// the effective batch: 1 if the value is already the total over all ranks, otherwise the
// number of ranks, or 1 if that is not known.
func globalRanks(m *Match, s step) int {
	if m.Profile.Knobs[profile.Global].Scope == profile.Total {
		return 1
	}
	return max(1, s.ranks)
}

// total returns the effective batch of s.
func (s step) total() int { return s.perMicro * s.perRank * max(1, s.ranks) }

// perRank converts n, the value of a knob, to a value per rank.
func perRank(m *Match, name string, n int, s step) (int, error) {
	return scoped(m.Profile.Knobs[name].Scope, name, n, s, m.Where(name))
}

func scoped(scope profile.Scope, name string, n int, s step, where string) (int, error) {
	switch {
	case scope == profile.Total && s.ranks == 0 || scope == profile.Unsaid && s.ranks == 0:
		return 0, &WorldError{name, s.why}
	case scope == profile.Unsaid && s.ranks > 1:
		return 0, &KnobError{name, where, fmt.Sprint(n), fmt.Sprintf("may be the value per rank or the total over all %d ranks; say which with --knob %s=%s@rank or @total", s.ranks, name, where)}
	case scope == profile.Total && n%s.ranks != 0:
		return 0, &KnobError{name, where, fmt.Sprint(n), fmt.Sprintf("is counted over all ranks, and is not divisible by %d", s.ranks)}
	case scope == profile.Total:
		return n / s.ranks, nil
	}
	return n, nil
}

// written converts n, a value per rank, to the value of a knob with the given scope.
func written(scope profile.Scope, n, ranks int) int {
	if scope == profile.Total {
		return n * max(1, ranks)
	}
	return n
}

// agree returns an error if a layer and the framework set the same knob to different
// values: headroom must not guess which of the two applies.
func agree(m *Match, s step) error {
	for i, layer := range m.Layers {
		wants := map[string]int{profile.Micro: s.perMicro, profile.Accumulation: s.perRank, profile.Global: s.total()}
		for _, name := range profile.Counted {
			want := wants[name]
			at, err := m.find(layer, m.under[i], name)
			if err != nil {
				return err
			}
			if at.text == "" {
				continue
			}
			n, err := m.amount(layer, m.under[i], name)
			if err != nil {
				return err
			}
			if name == profile.Global && s.ranks == 0 {
				return &WorldError{at.where, s.why}
			}
			if n != want {
				return &KnobError{name, at.where, at.text, fmt.Sprintf("this is the value for %s, but the value for %s is %d; use the same in both", layer.Name, m.Profile.Name, want)}
			}
		}
	}
	return nil
}

// ranksOf returns the number of data-parallel ranks, or 0 and the reason if it is not
// known.
func ranksOf(m *Match) (n int, why string, err error) {
	if m.Given.World > 0 {
		return m.Given.World, "", nil
	}
	if n, why, err = launched(m); n > 0 || err != nil {
		return n, why, err
	}
	for i, layer := range m.Layers {
		if n, err := m.amount(layer, m.under[i], profile.Processes); err != nil || n > 0 {
			return n, "", err
		}
	}
	return 0, why, nil
}

// launched returns the number of ranks that the launcher and the framework start, or 0
// and the reason if it is not known.
func launched(m *Match) (n int, why string, err error) {
	l := m.Launch
	_, starts := m.Profile.Knobs[profile.Devices]
	switch {
	case l.Ranks == 0:
		return 0, l.Why, nil
	case starts && l.Alone():
		return started(m)
	case m.Profile.Knobs[profile.Micro].Scope != profile.PerDevice || !l.Alone():
		return l.Ranks, "", nil
	case l.Devices == 0:
		return 0, "one process uses every GPU that it sees, and CUDA_VISIBLE_DEVICES is not set", nil
	}
	return l.Ranks * l.Devices, "", nil
}

// started returns the number of ranks that the framework starts by itself, or 0 and the
// reason if it is not known.
func started(m *Match) (n int, why string, err error) {
	n = 1
	for _, name := range []string{profile.Devices, profile.Nodes} {
		if _, has := m.Profile.Knobs[name]; !has {
			continue
		}
		at, err := m.find(m.Profile, m.files, name)
		if err != nil {
			return 0, "", err
		}
		count := command.Number(at.text)
		if bare := strings.Trim(at.text, `"'`); strings.HasPrefix(bare, "[") {
			count = strings.Count(bare, ",") + 1 // a list of GPU numbers
		} else if count == 0 && m.Launch.Devices > 0 && (bare == "auto" || bare == "-1") {
			count = m.Launch.Devices
		}
		if count == 0 {
			return 0, fmt.Sprintf("%s is %q", m.Where(name), at.text), nil
		}
		n *= count
	}
	return n, "", nil
}
