package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"headroom/cmd/headroom/ui"
	"headroom/configs"
	"headroom/harness"
	"headroom/job"
	"headroom/memory"
	"headroom/nvml"
	"headroom/recovery"
	"headroom/spelling"
	"headroom/wrap"
	"headroom/wrap/command"
	"headroom/wrap/profile"
	"headroom/wrap/rewrite"
)

func findCommand(u *ui.UI) *cli.Command {
	command := &cli.Command{
		Name:      "find",
		Usage:     "find the largest micro-batch that fits, and the plan to use",
		ArgsUsage: "-- COMMAND | CONFIG",
		UsageText: `headroom find [FLAGS] -- COMMAND	for any command that headroom can change
headroom find [FLAGS] CONFIG	for a file or a preset`,
		Description: `A PyTorch COMMAND is started once; its first step is tried on other numbers of
rows. Any other is started a few times, for a few steps with different sizes,
and writes into a temporary folder. A file from "headroom init" is one, too.

The batch.micro of CONFIG has no effect. Sizes are tried with the optimizer's
state in place; then whole optimizer steps are timed with the largest size that
fits and with a few smaller ones. Nothing is kept.`,
		CustomHelpTemplate: jobHelp("The status of a trial that failed for a reason other than memory is passed on."),
		Flags: slices.Concat(grouped(forCommand, append(knownFlags(), trialFlags()...)...), grouped(forConfig, configFlags()...),
			grouped(forBoth, quietFlag(), jsonFlag("print one JSON object"))),
		Action: func(c *cli.Context) error { return findAction(u, c) },
	}
	command.BashComplete = completeFlags(command, configs.Presets)
	return command
}

func findAction(u *ui.UI, c *cli.Context) error {
	if r, asked, err := commandRequest(c); asked || err != nil {
		if err != nil {
			return err
		}
		return findCommandsMicro(u, c, r)
	}
	for _, flag := range append(knownFlags(), trialFlags()...) {
		if name := flag.Names()[0]; isSet(c, name) {
			return ui.Usagef("headroom find --"+name+" … -- python train.py", "--%s applies to a command, but there is none after --", name)
		}
	}
	u.Quiet = c.Bool("quiet")
	ctx, interrupt, done := stopping(c.Context, func(_ os.Signal, again bool) { u.FindStops(again) })
	defer done()
	var s stage
	return s.attended(ctx, interrupt, func() error { return findIn(ctx, interrupt, u, c, &s) }, func(phase) error { return harness.ErrInterrupted })
}

// findIn carries out find for a configuration, from reading it to printing the answer.
func findIn(ctx context.Context, interrupt <-chan struct{}, u *ui.UI, c *cli.Context, s *stage) (err error) {
	cfg, err := loadConfig(c)
	if err != nil {
		return err
	}
	if err := job.Fits(cfg); err != nil {
		return ui.AsUsage(err)
	}
	j, err := opened(cfg)
	if err != nil {
		return err
	}
	if !s.move(opening, working) {
		return harness.ErrInterrupted
	}
	j.Wrap = wrapDevice
	trainer, err := j.Trainer(ctx)
	if err != nil {
		return fmt.Errorf("find: build the model: %w", err)
	}
	defer func() { err = errors.Join(err, trainer.Close()) }()
	o := j.Find()
	o.Interrupt, o.Now, o.OnEntry, o.OnTiming = interrupt, u.Now, u.Entry, u.Timed
	answer, err := harness.Find(ctx, trainer, o)
	if err != nil {
		return err
	}
	f := found{Device: j.Device(), Found: *answer}
	if c.Bool("json") {
		return u.AnswerJSON(f)
	}
	return u.Answer(f.String())
}

// found is the answer of find for a configuration.
type found struct {
	Device string `json:"device,omitempty"`
	harness.Found
}

// trialHeadroom is the share of the memory that a recommended micro-batch leaves
// unused. It equals the default of memory.headroom.
const trialHeadroom = 0.08

// trialFlags returns the flags of find that say how to try a command.
func trialFlags() []cli.Flag {
	return []cli.Flag{
		&cli.DurationFlag{Name: "flat-for", Value: wrap.DefaultFlatFor, Usage: "with no step limit, end once memory has been flat for `TIME`"},
		&cli.StringFlag{Name: "memory", Usage: "find what fits into `SIZE` of memory, such as 24GiB"},
		&cli.StringFlag{Name: "for", Usage: "`LIST`: what fits on several GPUs, as in a100-40,4090,48GiB"},
		&cli.IntFlag{Name: "look", Usage: "try the largest of a loader's first `N` batches"},
		boolFlag("evaluation", "find the largest batch of an evaluation, too"),
		boolFlag("writes-nothing", "COMMAND writes nothing that a trial could overwrite"),
		boolFlag("starts", "start COMMAND once for each size"),
	}
}

// memoriesAsked returns the memories that --memory and --for name. The error names everything that is wrong with them.
func memoriesAsked(c *cli.Context) ([]memory.Card, error) {
	one, several := c.String("memory"), c.String("for")
	switch {
	case isSet(c, "memory") && isSet(c, "for"):
		return nil, ui.Usagef("put the size into the list: --for "+several+","+one, "--memory and --for exclude each other")
	case isSet(c, "memory"):
		size, err := memory.Parse(one)
		if err != nil || size <= 0 {
			return nil, notASize("memory", one, err)
		}
		return []memory.Card{{Name: one, Memory: size}}, nil
	case !isSet(c, "for"):
		return nil, nil
	}
	var all []memory.Card
	var unknown []string
	for name := range strings.SplitSeq(several, ",") {
		name = strings.TrimSpace(name)
		card, known := memory.FindCard(name)
		if !known {
			size, err := memory.Parse(name)
			if err != nil || size <= 0 {
				unknown = append(unknown, name)
			}
			card = memory.Card{Name: name, Memory: size}
		}
		all = append(all, card)
	}
	if len(unknown) > 0 {
		return nil, notCards(unknown)
	}
	return all, nil
}

// notCards returns the usage error for names in --for that are neither cards nor sizes.
func notCards(names []string) error {
	hint, first := "for example --for a100-40,4090,48GiB", strings.ToLower(names[0])
	near := slices.DeleteFunc(memory.CardNames(), func(n string) bool { return first == "" || !strings.HasPrefix(n, first+"-") })
	if n := spelling.Nearest(first, memory.CardNames()); n != "" && len(near) == 0 {
		near = []string{n}
	}
	if _, err := strconv.ParseFloat(first, 64); err == nil {
		hint = "write a size with its unit: " + first + "GiB"
	} else if len(near) > 0 {
		hint = "did you mean " + strings.Join(near, " or ") + "?"
	}
	return ui.Usagef(hint, "--for %s: not known; allowed, with commas between them: sizes such as 48GiB, and %s", strings.Join(names, ","), strings.Join(memory.CardNames(), ", "))
}

// foundMicro is what find answers for a command.
type foundMicro struct {
	Profile string        `json:"profile"`
	Asked   recovery.Plan `json:"asked"` // the plan of the user's command
	Device  string        `json:"device,omitempty"`
	wrap.Found
	Command []string `json:"command"`         // the command with the recommended plan
	Diff    string   `json:"diff,omitempty"`  // from the user's command to Command
	Prove   []string `json:"prove,omitempty"` // what must hold for Command to train the same, but is not known to hold
}

// findCommandsMicro finds the largest micro-batch of a command that fits, by running trials of
// the command, and prints the answer.
func findCommandsMicro(u *ui.UI, c *cli.Context, r request) error {
	u.Quiet = c.Bool("quiet")
	if err := notForCommands(c, "a configuration", configFlags()); err != nil {
		return err
	}
	within, wrong := memoriesAsked(c)
	if wrong != nil {
		return wrong
	}
	if look := c.Int("look"); isSet(c, "look") && look < 1 {
		return wrongValue("look", look, outOfRange)
	}
	w, err := recognised(r)
	if err == nil {
		done, err := inOneStart(u, c, r, w, within)
		if done || err != nil {
			return err
		}
	}
	if unnamed := unnamedKnobs(c, r, w, err); unnamed != nil {
		return unnamed
	}
	if err != nil {
		return err
	}
	if w.Match == nil {
		return ui.AsUsage(w.Why)
	}
	f := foundMicro{Profile: w.Match.Profile.Name, Asked: w.Asked}
	trials, o, err := prepared(c, w, within, &f)
	if err != nil {
		return ui.AsUsage(err)
	}
	ctx, stop := interruptible(c, u)
	defer stop()
	trials.Trouble = func(err error) { u.Warn("%v", err) }
	u.LooksAmong(o)
	o.Try, o.OnTried = trials.Try, u.Tried
	found, err := wrap.Find(ctx, o)
	if err != nil {
		return trialFailed(u, w.Line, err)
	}
	f.Found = *found
	if err := f.rewritten(w); err != nil {
		return err
	}
	if c.Bool("json") {
		return u.AnswerJSON(f)
	}
	return u.Answer(f.String())
}

// inOneStart finds the largest micro-batch in one process of the command, if it can be tried there.
func inOneStart(u *ui.UI, c *cli.Context, r request, w *wrapped, within []memory.Card) (done bool, err error) {
	if triedInside(c, r, w) {
		return findRows(u, c, w, within)
	}
	flag := onlyInside(c)
	if flag == "" {
		return false, nil
	}
	hint := "leave it out, or what asks for several starts"
	if flag == "for" {
		hint = "use --memory for one size, or leave out what asks for several starts"
	}
	return true, ui.Usagef(hint, "--%s is answered from one start of a PyTorch command, and this command is not tried in one start", flag)
}

// onlyInside returns the first flag that the user has set and that only trials in one start of a command can answer; "" if there is none.
func onlyInside(c *cli.Context) string {
	for _, flag := range []string{"for", "look", "evaluation"} {
		if isSet(c, flag) {
			return flag
		}
	}
	return ""
}

// unnamedKnobs returns the error for a command that is not recognised, and whose sizes the user has
// not named either. It names all that find has to know, so that the user learns it at once. w and
// err are what recognised returned.
func unnamedKnobs(c *cli.Context, r request, w *wrapped, err error) error {
	if r.Profile != "" || !unrecognised(w, err) {
		return nil
	}
	all, _ := nvml.GPUs() // without NVML there is no GPU to watch
	line := command.Line{Args: r.Args, Env: os.Environ(), Dir: r.Dir}
	names := rewrite.TrialKnobs(r.Knobs, len(line.GPUs(all)) > 0, c.Bool("writes-nothing"))
	if !slices.Contains(names, "micro") && !slices.Contains(names, "accumulation") {
		return nil
	}
	hint := "--knob " + strings.Join(names, "=FLAG --knob ") + "=FLAG"
	if slices.Contains(names, "output") {
		hint += "; --writes-nothing in place of output if it writes nothing"
	}
	text := "the command is not recognised, and find has to know where it sets: "
	if len(r.Knobs) > 0 {
		text = "find also has to know where the command sets: "
	}
	return ui.Usagef(hint, "%s%s", text, strings.Join(names, ", "))
}

// unrecognised reports whether what recognised returned means that no profile knows the command,
// and that the user has not said where it sets its micro-batch.
func unrecognised(w *wrapped, err error) bool {
	if err != nil {
		problem := (*profile.Error)(nil)
		return errors.As(err, &problem) && problem.Key == "micro" && problem.Value == ""
	}
	if w.Match == nil {
		return errors.As(w.Why, new(*rewrite.NotRecognisedError))
	}
	return w.Match.Profile.Name == "plain"
}

// prepared returns how to try the command w, or an error that says why it cannot be tried. It
// also fills in f.Device.
func prepared(c *cli.Context, w *wrapped, within []memory.Card, f *foundMicro) (*wrap.Trials, wrap.FindOptions, error) {
	o := wrap.FindOptions{Asked: w.Asked, Headroom: trialHeadroom}
	t := &wrap.Trials{Match: w.Match, FlatFor: c.Duration("flat-for")}
	if t.FlatFor <= 0 {
		return t, o, wrongValue("flat-for", t.FlatFor, outOfRange)
	}
	if len(within) > 0 {
		t.Memory = within[0].Memory
	}
	all, err := nvml.GPUs()
	gpus := w.Line.GPUs(all)
	if t.Memory > 0 && len(gpus) == 0 {
		return t, o, errors.Join(errors.New("--memory: less memory can be simulated only on a GPU, and none was found"), err)
	}
	for _, g := range gpus {
		if !strings.Contains(f.Device, g.Name) {
			f.Device = strings.TrimPrefix(f.Device+", "+g.Name, ", ")
		}
	}
	if err := rewrite.Triable(w.Match, len(gpus) > 0, c.Bool("writes-nothing")); err != nil {
		return t, o, err
	}
	o.Sizes, err = rewrite.Sizes(w.Match, w.Asked)
	if err == nil && len(o.Sizes) == 0 {
		err = errors.New("no micro-batch size keeps the effective batch the same")
	}
	if err != nil {
		return t, o, fmt.Errorf("no other micro-batch can be tried: %w", err)
	}
	return t, o, nil
}

// rewritten fills in the fields of f that describe the command with the recommended plan.
func (f *foundMicro) rewritten(w *wrapped) error {
	next, err := rewrite.To(w.Match, f.Recommended, rewrite.Resume{})
	if err != nil {
		return fmt.Errorf("find: the command for %v: %w", f.Recommended, err)
	}
	f.Command, f.Diff = next.Command.Masked(), next.Diff(w.Line)
	if !w.Trust {
		f.Prove = next.Prove
	}
	return nil
}

// trialFailed returns the error that the command find is to end with, given err, which ended its
// search. If a trial failed for a reason other than memory, the returned error carries the trial's
// exit status, and trialFailed first prints the last output of the trial.
func trialFailed(u *ui.UI, c command.Line, err error) error {
	var failed *wrap.TrialError
	switch {
	case errors.As(err, &failed):
		for line := range strings.Lines(failed.Last) {
			u.Line(ui.Plain, "  | "+strings.TrimSuffix(line, "\n"))
		}
		return &ui.ChildError{Code: max(1, failed.Code), Err: err, Hint: "check whether the command runs without headroom; the micro-batch is not the cause"}
	case errors.As(err, new(*command.StartError)):
		return notStarted(c, err)
	}
	return err
}
