package rewrite

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"headroom/recovery"
	"headroom/wrap/command"
	"headroom/wrap/profile"
)

// drawn is a random framework, with a command of that framework and the step that the
// command asks for.
type drawn struct {
	profile                     profile.Profile
	command                     command.Line
	world, micro, parts         int
	hasAccumulation, hasGlobal  bool
	minimum                     int
	coupling                    profile.Coupling
	normalised                  profile.Normalised
	pinned, givenGlobal, giveIt bool
	ramp                        []int // START and INCREMENT of the effective batch; nil if it does not grow
}

func draw(t *rapid.T) drawn {
	d := drawn{
		world: rapid.IntRange(1, 6).Draw(t, "world"), micro: rapid.IntRange(1, 24).Draw(t, "micro"),
		parts: rapid.IntRange(1, 8).Draw(t, "parts"), minimum: rapid.IntRange(1, 3).Draw(t, "min"),
		hasAccumulation: rapid.Bool().Draw(t, "accumulation"), hasGlobal: rapid.Bool().Draw(t, "global"),
		coupling:   rapid.SampledFrom([]profile.Coupling{profile.ByNothing, profile.ByNothing, profile.ByProduct, profile.ByTotal, profile.ByMicro}).Draw(t, "coupling"),
		normalised: rapid.SampledFrom([]profile.Normalised{profile.IsNormalised, profile.IsNormalised, profile.Prove, profile.NotNormalised}).Draw(t, "normalised"),
		pinned:     rapid.Bool().Draw(t, "pinned"), givenGlobal: rapid.Bool().Draw(t, "given global"), giveIt: rapid.Bool().Draw(t, "given accumulation"),
	}
	scope := func(name string) profile.Scope {
		return rapid.SampledFrom([]profile.Scope{profile.PerDevice, profile.PerRank, profile.Total}).Draw(t, name)
	}
	style := rapid.SampledFrom([]profile.Style{profile.SpaceStyle, profile.EqualsStyle, profile.HydraStyle}).Draw(t, "style")
	d.profile = profile.Profile{Name: "made-up", Style: style, Coupling: d.coupling, Normalised: d.normalised, Unit: profile.Steps, Resume: profile.Continuation{Mode: "none"}, Knobs: map[string]profile.Knob{}}
	args := []string{"torchrun", fmt.Sprintf("--nproc-per-node=%d", d.world), "train.py"}
	knob := func(name string, scope profile.Scope, amount int, given bool) {
		k := profile.Knob{Flags: []string{"--" + name}, Paths: []string{"a." + name}, Type: profile.Int, Scope: scope}
		if name == profile.Micro {
			k.Min = d.minimum
		}
		d.profile.Knobs[name] = k
		switch n := written(scope, amount, d.world); {
		case !given:
		case style == profile.HydraStyle:
			args = append(args, fmt.Sprintf("a.%s=%d", name, n))
		case style == profile.SpaceStyle && rapid.Bool().Draw(t, "apart"):
			args = append(args, "--"+name, fmt.Sprint(n))
		default:
			args = append(args, fmt.Sprintf("--%s=%d", name, n))
		}
	}
	knob(profile.Micro, scope("micro is of"), d.micro, true)
	d.profile.Law.Write = []string{profile.Micro}
	if d.hasAccumulation {
		knob(profile.Accumulation, scope("accumulation is of"), d.parts, d.giveIt)
		d.profile.Law.Write = append(d.profile.Law.Write, profile.Accumulation)
	}
	if d.hasGlobal {
		d.profile.Law.Derive = profile.Accumulation
		knob(profile.Global, profile.Total, d.micro*d.parts*d.world, false)
		if d.givenGlobal {
			args = append(args, map[profile.Style]string{profile.SpaceStyle: "--global=", profile.EqualsStyle: "--global=", profile.HydraStyle: "a.global="}[style]+fmt.Sprint(d.micro*d.parts*d.world))
		}
		if rapid.Bool().Draw(t, "grows") {
			d.profile.Knobs[profile.Rampup] = profile.Knob{Flags: []string{"--rampup"}, Paths: []string{"a.rampup"}, Type: profile.List}
			unit := rapid.SampledFrom([]int{1, d.world, d.micro * d.world}).Draw(t, "in units of")
			d.ramp = []int{unit * rapid.IntRange(1, 8).Draw(t, "start"), unit * rapid.IntRange(1, 8).Draw(t, "increment")}
			args = append(args, fmt.Sprintf("%s=%d,%d,100000", map[profile.Style]string{profile.SpaceStyle: "--rampup", profile.EqualsStyle: "--rampup", profile.HydraStyle: "a.rampup"}[style], d.ramp[0], d.ramp[1]))
		}
		if d.pinned {
			d.profile.Law.Pin = []string{profile.Global}
		}
	}
	d.command = command.Line{Args: rapid.Permutation(args[3:]).Draw(t, "order"), Dir: "/work"}
	if style == profile.SpaceStyle {
		d.command.Args = args[3:] // a value comes right after its flag
	}
	d.command.Args = append(slices.Clone(args[:3]), d.command.Args...)
	return d
}

// TestRewriteIsExactOrRefused checks that, for any law and any scopes, To returns
// either an error or a command that asks for exactly the plan. The test reads the command
// back with its profile, and also computes the effective batch independently.
func TestRewriteIsExactOrRefused(t *testing.T) {
	exact, refused, grown := 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		d := draw(t)
		m, err := Recognise(d.command, []profile.Profile{d.profile}, Given{Profile: d.profile.Name})
		if err != nil {
			t.Fatal(err)
		}
		asked, err := Asks(m)
		if err != nil {
			if !typedError(err) {
				t.Fatalf("%T: %v", err, err)
			}
			refused++
			return
		}
		want := asked.Plan.WithMicro(rapid.IntRange(1, 30).Draw(t, "smaller"))
		if !rapid.Bool().Draw(t, "uniform") {
			want.Uniform, want.Common = false, 0
		}
		out, err := To(m, want, Resume{})
		if err != nil {
			if !typedError(err) {
				t.Fatalf("%T: %v", err, err)
			}
			refused++
			mustHaveAReason(t, d, asked.Plan, want)
			return
		}
		exact++
		if !slices.Equal(out.Command.Args[:3], d.command.Args[:3]) {
			t.Fatalf("the launcher changed: %q", out.Command.Args)
		}
		after, err := Recognise(out.Command, []profile.Profile{d.profile}, Given{Profile: d.profile.Name})
		if err != nil {
			t.Fatal(err)
		}
		got, err := Asks(after)
		if err != nil {
			t.Fatal(err)
		}
		if got.Plan.Effective != want.Effective || got.Plan.Micro != want.Largest() || got.Plan.World != want.World {
			t.Fatalf("%q asks for %v, want %v", out.Command.Args, got.Plan, want)
		}
		for _, batch := range d.ramp {
			if n := want.Largest() * d.world; batch%n != 0 {
				t.Fatalf("%q: %d samples at once do not divide an effective batch of %d", out.Command.Args, n, batch)
			}
			grown++
		}
		if n := product(d.profile, out.Command.Args, d.world); n != want.Effective {
			t.Fatalf("%q trains %d samples per step, want %d", out.Command.Args, n, want.Effective)
		}
	})
	t.Logf("%d exact, %d refused; of growing batches %d values", exact, refused, grown)
	if exact == 0 || refused == 0 {
		t.Errorf("%d exact, %d refused: the test has to see both", exact, refused)
	}
}

// typedError reports whether an error has one of the types that Rewrite documents.
func typedError(err error) bool {
	var inexact *InexactError
	var knob *KnobError
	var world *WorldError
	return errors.As(err, &inexact) || errors.As(err, &knob) || errors.As(err, &world)
}

// mustHaveAReason fails the test if there was no reason to refuse the rewrite.
func mustHaveAReason(t *rapid.T, d drawn, asked, want recovery.Plan) {
	share := asked.Share(0)
	canAccumulate := d.hasAccumulation && d.normalised != profile.NotNormalised || d.hasGlobal && !d.hasAccumulation && (d.givenGlobal || d.pinned)
	divides := want.Uniform || share%want.Micro == 0
	if canAccumulate && !d.hasGlobal && divides && d.coupling != profile.ByMicro && want.Largest() >= d.minimum {
		t.Fatalf("%v refused as %v", d.command.Args, want)
	}
}

// product returns the effective batch of a command, computed without the code under test.
func product(p profile.Profile, args []string, world int) int {
	value := map[string]int{}
	for i, arg := range args[3:] {
		for _, name := range profile.Counted {
			for _, prefix := range []string{"--", "a.", "++a."} {
				switch rest, ok := strings.CutPrefix(arg, prefix+name); {
				case ok && rest == "":
					value[name] = command.Number(args[3:][i+1])
				case ok:
					value[name] = command.Number(rest[1:])
				}
			}
		}
	}
	if value[profile.Global] > 0 {
		return value[profile.Global]
	}
	n := world
	for _, name := range []string{profile.Micro, profile.Accumulation} {
		if value[name] == 0 {
			continue
		}
		if n *= value[name]; p.Knobs[name].Scope == profile.Total {
			n /= world
		}
	}
	return n
}
