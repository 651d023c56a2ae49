package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/urfave/cli/v2"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"headroom/configs"
	"headroom/device"
	"headroom/harness"
)

func runCommand(u *ui) *cli.Command {
	command := &cli.Command{
		Name:      "run",
		Usage:     "train to the end, in whatever memory there is",
		ArgsUsage: "CONFIG",
		Description: `CONFIG is a file, or the name of a preset. The run is kept in runs/NAME; the
same command goes on with it after an interrupt, a crash or a loss of power, and
does nothing if it is finished. If the device is lost, a new process takes this
one's place and goes on from the newest checkpoint.

The first Ctrl-C (or SIGTERM, SIGHUP) finishes the step, saves and stops; the
second one stops at once.`,
		CustomHelpTemplate: jobHelp,
		Flags: append(jobFlags(),
			&cli.StringFlag{Name: "name", Usage: "name the run, and so its folder, `NAME`"},
			boolFlag("fresh", "set the run of that name aside and start from step 0"),
			boolFlag("again", "the same, but only if that run is finished; else go on with it"),
			boolFlag("json", "print every entry of the journal and every step as a JSON line on stdout"),
			boolFlag("no-progress", "do not show every so often how far the run is"),
			boolFlag("verbose", "show the log, and every checkpoint")),
		Action: func(c *cli.Context) error { return runAction(u, c) },
	}
	command.BashComplete = completeFlags(command, configs.Presets)
	return command
}

func runAction(u *ui, c *cli.Context) error {
	u.quiet = c.Bool("quiet")
	s := &session{u: u, verbose: c.Bool("verbose")}
	ctx, interrupt, done := stopping(c.Context, func(_ os.Signal, again bool) { u.asked(s.training.Load(), again) })
	defer done()
	before, err := predecessor()
	if err != nil {
		return err
	}
	s.progress = progress{u: u, started: u.now(), hidden: c.Bool("no-progress")}
	if c.Bool("json") {
		s.stream = &stream{u: u}
		u.screen.live = u.screen.live && !u.outShows
	}
	open := func() (*configs.Job, *harness.Folder, error) { return newJob(u, c, interrupt) }
	if before != nil {
		open = func() (*configs.Job, *harness.Folder, error) { return before.job(interrupt) }
		s.progress.failures = before.Failures
	}
	job, folder, err := open()
	if err != nil {
		return s.notOpened(before, err)
	}
	s.name, s.dir, s.progress.total = job.Config.Name, job.Config.RunDir(), job.Config.Train.Steps
	s.training.Store(true)
	result, err := s.run(ctx, interrupt, job, folder)
	before.carry(&result)
	if relaunches(err) {
		err = s.goesOn(interrupt, done, folder, relaunch{Dir: s.dir, Device: job.Kind(), Resumed: result.Resumed, Failures: result.Failures}, err)
	} else {
		err = errors.Join(err, folder.Close())
	}
	done() // a report is drawn in a moment: a signal may end that
	return s.end(result, err)
}

// newJob is what the command line asks for, in its folder. A run that is in the
// way is set aside if that was asked for.
func newJob(u *ui, c *cli.Context, interrupt <-chan struct{}) (*configs.Job, *harness.Folder, error) {
	cfg, err := loadConfig(c)
	if err != nil {
		return nil, nil, err
	}
	aside, err := makeWay(cfg, c.Bool("fresh"), c.Bool("again"))
	if aside != "" {
		u.setAside(cfg.RunDir(), aside)
	}
	if err != nil {
		return nil, nil, err
	}
	open := cfg.Schedule.Kind != "constant" && cfg.Schedule.Steps == 0
	if err := goOn(cfg); err != nil {
		return nil, nil, err
	}
	job, folder, err := openJob(cfg, interrupt)
	if err == nil && open && job.Config.Schedule.Steps < job.Config.Train.Steps {
		u.shortSchedule(job.Config)
	}
	return job, folder, err
}

// wrapDevice is configs.Job.Wrap: nil but in tests, where devices are lost.
var wrapDevice func(device.Device) device.Device

// session is one call of run, from the first step to the last word.
type session struct {
	u         *ui
	name, dir string
	verbose   bool
	training  atomic.Bool // the signals are the run's to answer
	device    string      // that it ran on, "" if it opened none
	progress  progress
	stream    *stream // nil without --json
}

func (s *session) run(ctx context.Context, interrupt <-chan struct{}, job *configs.Job, folder *harness.Folder) (harness.Result, error) {
	job.Passed, job.Squeezed, job.Wrap = s.u.passed(), s.squeezed, wrapDevice
	o := job.Options()
	o.Folder, o.Interrupt = folder, interrupt
	o.OnEntry, o.OnStep = s.entry, s.step
	if s.verbose {
		o.Log = consoleLog(s.u.screen)
	}
	result, err := harness.Run(ctx, o)
	s.device = job.Device()
	return result, err
}

func (s *session) squeezed(q configs.Squeeze, begins bool) {
	s.stream.send(squeezeLine{"squeeze", begins, q.From, q.To, q.Take})
	s.u.squeezed(q, begins)
}

func (s *session) entry(e harness.Entry) {
	s.stream.send(e)
	if e.Kind == harness.KindOOM {
		s.progress.failures++
	}
	if !s.verbose { // the log tells it
		s.u.entry(e)
	}
}

func (s *session) step(r harness.StepReport) {
	s.stream.send(stepLine{"step", r})
	s.progress.step(r)
}

// end draws the report and says how it went.
func (s *session) end(result harness.Result, err error) error {
	already := err == nil && result.Attempts == 0
	switch {
	case already:
		s.u.alreadyFinished(s.name, s.dir, result.Steps)
	case err == nil:
		s.u.finished(result)
	case isInterrupted(err):
		lost := (*harness.DeviceLost)(nil)
		if errors.As(err, &lost) {
			s.u.say("%v", lost)
		}
		s.u.interrupted(result, s.progress.total, lost == nil && errors.Is(err, harness.ErrInterrupted), s.kept())
	default:
		s.u.screen.show("")
	}
	if _, missing := os.Stat(filepath.Join(s.dir, "report.html")); !already || missing != nil {
		s.report() // of a finished run too, if it was killed just before
	}
	s.last(result, err)
	return err
}

// last is the last line with --json.
func (s *session) last(result harness.Result, err error) {
	last := resultLine{Kind: "result", Status: exitStatus(err), Name: s.name, Folder: s.dir,
		Report: filepath.Join(s.dir, "report.html"), Finished: result.Finished, Steps: result.Steps,
		Resumed: result.Resumed, Failures: result.Failures, Losses: result.Losses, Plan: result.Plan}
	if err != nil {
		last.Error = err.Error()
	}
	s.stream.send(last)
}

// kept tells whether there is a checkpoint to go on from.
func (s *session) kept() bool {
	all, err := filepath.Glob(filepath.Join(s.dir, "checkpoints", "step-*"))
	return err == nil && len(all) > 0
}

// report draws the run's report. Without one the run is what it is, so a
// failure is only told.
func (s *session) report() {
	r, err := drawn(s.dir, s.device, s.u.now())
	if err == nil {
		err = writeReport(s.u, r, s.dir)
	}
	if err != nil {
		s.u.noReport(err)
	}
}

// consoleLog shows the log between the other lines, but for what the end of the
// command tells.
func consoleLog(s *screen) *zap.Logger {
	config := zap.NewDevelopmentEncoderConfig()
	return zap.New(besides{zapcore.NewCore(zapcore.NewConsoleEncoder(config), zapcore.AddSync(s), zapcore.DebugLevel)})
}

// besides leaves the last entry of a run to [session.end].
type besides struct{ zapcore.Core }

func (b besides) With(fields []zapcore.Field) zapcore.Core { return besides{b.Core.With(fields)} }

func (b besides) Check(e zapcore.Entry, to *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if b.Enabled(e.Level) {
		return to.AddCore(e, b)
	}
	return to
}

func (b besides) Write(e zapcore.Entry, fields []zapcore.Field) error {
	for _, f := range fields {
		if f.Key == "kind" && ending(harness.Kind(f.String)) {
			return nil
		}
	}
	return b.Core.Write(e, fields)
}
