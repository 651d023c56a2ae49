package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/urfave/cli/v2"

	"headroom/cmd/headroom/ui"
	"headroom/configs"
	"headroom/harness"
	"headroom/job"
)

func findCommand(u *ui.UI) *cli.Command {
	command := &cli.Command{
		Name:      "find",
		Usage:     "find the largest micro-batch that fits, and the plan to use",
		ArgsUsage: "-- COMMAND | CONFIG",
		UsageText: `headroom find [FLAGS] -- COMMAND	for any command that headroom can change
headroom find [FLAGS] CONFIG	for a file or a preset`,
		Description: `COMMAND is started a few times with different micro-batches. Each trial runs a
few steps, with the effective batch that COMMAND asks for, and writes into a
temporary folder; its output is not shown. A file from "headroom init" can take
the place of -- COMMAND.

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
