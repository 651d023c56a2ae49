package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/urfave/cli/v2"

	"headroom/cmd/headroom/ui"
	"headroom/configs"
	"headroom/job"
	"headroom/worker"
	"headroom/wrap/command"
)

// beforehand settles how many rows of a batch the worker runs at once at most, before the run's folder is made or opened, as --micro
// says. dir is the folder of a run that goes on, or "".
func (w *wrapped) beforehand(u *ui.UI, c *cli.Context, dir string) error {
	switch w.request.Micro {
	case "":
		return nil
	case configs.Auto:
		ctx, stop := interruptible(c, u)
		defer stop()
		return w.findMicro(ctx, u, dir)
	}
	var err error
	w.Worker.Micro, err = strconv.Atoi(w.request.Micro)
	return err
}

// findMicro finds how many rows of a batch the worker is to run at once at most, unless an earlier run has found it. Where it
// cannot be found, the run goes on as without --micro. dir is the folder of a run that goes on, or "".
func (w *wrapped) findMicro(ctx context.Context, u *ui.UI, dir string) (err error) {
	if why := w.untriable(); why != "" {
		u.Warn("--micro auto: %s; the run goes on as without it", why)
		return nil
	}
	line, remove, err := rehearsed(w)
	defer func() { err = errors.Join(err, remove()) }()
	if err != nil {
		return err
	}
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("--micro auto: %w", err)
	}
	defer func() { _ = null.Close() }()
	began := u.Now()
	tried := 0
	find := job.FindRowsOptions{Headroom: trialHeadroom, Version: readBuild().Version, Output: null, OnTried: func(worker.Trial) { tried++ }}
	found, from, why, err := job.FindMicro(ctx, u, w.Line, line, runFolders(dir), u.FindsMicro, find)
	took := u.Now().Sub(began)
	switch {
	case errors.As(err, new(*command.StartError)):
		return notStarted(w.Line, err)
	case ctx.Err() != nil:
		return err
	case err != nil:
		u.Warn("--micro auto: %v; the run goes on as without it (%.0f s)", err, took.Seconds())
		return nil
	case found == nil:
		u.Warn("--micro auto: %s; the run goes on as without it (%.0f s)", why, took.Seconds())
		return nil
	}
	w.Found, w.Worker.Micro, w.Worker.Found = found, found.Micro, found.Micro > 0
	u.FoundMicro(*found, from, tried, took)
	return nil
}

// untriable says why it cannot be found before the start how many rows of a batch fit at once, or "".
func (w *wrapped) untriable() string {
	switch launch, err := command.Peel(w.Line); {
	case w.place.Of > 0:
		return "it is found on one node, and this is one of several"
	case err != nil:
		return err.Error()
	case launch.Ranks > 1 || w.Match != nil && w.Asked.World > 1 || w.request.World > 1:
		return "it is found for one rank, and the command has several"
	}
	if python, err := w.Line.Python(); err != nil {
		return err.Error()
	} else if !mayTrain(w.Line, python.Words) {
		return "the script does not seem to train with PyTorch"
	}
	return ""
}

// runFolders returns the folders of all runs, and dir if it is not "".
func runFolders(dir string) []string {
	all, _ := filepath.Glob(filepath.Join(configs.RunsDir(), "*", "learned.json"))
	for i := range all {
		all[i] = filepath.Dir(all[i])
	}
	if dir != "" {
		all = append(all, dir)
	}
	return all
}
