package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"

	"github.com/urfave/cli/v2"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"headroom/cmd/headroom/ui"
	"headroom/configs"
	"headroom/device"
	"headroom/harness"
	"headroom/job"
	"headroom/notify"
	"headroom/report"
	"headroom/runs"
)

func runCommand(u *ui.UI) *cli.Command {
	command := &cli.Command{
		Name:      "run",
		Usage:     "train to the end, in whatever memory there is",
		ArgsUsage: "-- COMMAND | CONFIG",
		UsageText: `headroom run [FLAGS] -- COMMAND	run any training command, unchanged
headroom run [FLAGS] CONFIG	train what a file or a preset describes`,
		Description: `A PyTorch step that runs out of memory is run again in pieces, or COMMAND starts
again from its newest checkpoint. The same command line continues a CONFIG.`,
		CustomHelpTemplate: jobHelp(ui.PassedOn),
		Flags: slices.Concat(grouped(forCommand, wrapFlags()...), grouped(forConfig, append(configFlags(), configRunFlags()...)...),
			grouped(forBoth, &cli.StringFlag{Name: "name", Usage: "name the run and its folder `NAME`"}),
			grouped(forBoth, append(webFlags(), notifyFlag())...),
			grouped(forBoth, quietFlag(), boolFlag("verbose", "show the log, and every checkpoint"))),
		Action: func(c *cli.Context) error { return runAction(u, c) },
	}
	command.BashComplete = completeFlags(command, configs.Presets)
	return command
}

func runAction(u *ui.UI, c *cli.Context) error {
	u.Message = os.Getenv("HEADROOM_TERMINATION_LOG")
	if r, asked, err := commandRequest(c); asked || err != nil {
		if err != nil {
			return err
		}
		return wrapAction(u, c, r)
	}
	for _, flag := range wrapFlags() {
		if name := flag.Names()[0]; isSet(c, name) {
			return ui.Usagef("headroom run --"+name+" … -- python train.py", "--%s applies to a command, but there is none after --", name)
		}
	}
	u.Quiet = c.Bool("quiet")
	live, err := openWeb(c)
	if err != nil {
		return err
	}
	defer live.close()
	s := &runner{u: u, verbose: c.Bool("verbose"), web: live}
	ctx, interrupt, done := stopping(c.Context, func(_ os.Signal, again bool) { u.Asked(s.stage.in(working), again) })
	defer done()
	before, err := predecessor()
	if err != nil {
		return err
	}
	s.progress = ui.Progress{UI: u, Started: u.Now(), Hidden: c.Bool("no-progress")}
	if c.Bool("json") {
		s.stream = &ui.Stream{UI: u}
		u.Screen.Live = u.Screen.Live && !u.OutShows
	}
	open := func() (*job.Job, *runs.Folder, error) { return newJob(u, c) }
	s.told = func(cfg *configs.Config) ([]string, error) { return told(c, cfg.Notify) }
	if before != nil {
		open = func() (*job.Job, *runs.Folder, error) { return before.open() }
		s.told = func(*configs.Config) ([]string, error) { return before.Notify, nil }
		s.progress.Failures = before.Failures
	}
	return s.stage.attended(ctx, interrupt, func() error { return s.work(ctx, interrupt, done, before, open) },
		func(from phase) error { return s.leave(from, before) })
}

// work opens the run and carries it out.
func (s *runner) work(ctx context.Context, interrupt <-chan struct{}, done func(), before *handover, open func() (*job.Job, *runs.Folder, error)) error {
	j, folder, err := open()
	if err != nil {
		if !s.stage.move(opening, closing) {
			return nil // the run has been abandoned: nobody waits for the error
		}
		return s.notOpened(before, err)
	}
	s.name, s.dir, s.progress.Total = j.Config.Name, j.Config.RunDir(), j.Config.Train.Steps
	given, err := s.told(j.Config)
	if err == nil {
		var to []notify.Receiver
		to, err = receivers(given)
		s.notes = notifier(s.u, s.dir, to)
	}
	if err != nil {
		return errors.Join(err, folder.Close())
	}
	defer s.notes.Close()
	if c, known := diskOf(j); known && c.State != ok && before == nil {
		s.u.Warn("checkpoints: %s: %s", c.Found, c.Next)
	}
	s.folder = folder
	s.watchCrashes(folder)
	s.web.serve(s.u, s.dir)
	if !s.stage.move(opening, working) {
		return errors.Join(s.crash.close(), folder.Close())
	}
	result, err := s.run(ctx, interrupt, j, folder)
	if !s.stage.move(working, closing) {
		return nil
	}
	if closed := s.crash.close(); closed != nil {
		s.u.Warn("close the crash log: %v", closed)
	}
	before.carry(&result)
	if execs(err) {
		s.notes.Close() // the new process does not know what is under way
		err = s.goesOn(interrupt, done, folder, handover{Dir: s.dir, Device: j.Kind(), Resumed: result.Resumed, Failures: result.Failures, Notify: given}, err)
	} else {
		err = errors.Join(err, folder.Close())
	}
	done() // drawing a report takes only a moment: a signal may end it
	return s.end(result, err)
}

// newJob opens the job that the command line asks for, and the folder of its run. If --fresh or
// --again demands it, newJob first sets aside the run that is already in the folder.
func newJob(u *ui.UI, c *cli.Context) (*job.Job, *runs.Folder, error) {
	cfg, err := loadConfig(c)
	if err != nil {
		return nil, nil, err
	}
	if err := job.Fits(cfg); err != nil {
		return nil, nil, ui.AsUsage(err)
	}
	aside, err := makeWay(cfg, c.Bool("fresh"), c.Bool("again"))
	if aside != "" {
		u.SetAside(cfg.RunDir(), aside)
	}
	if err != nil {
		return nil, nil, err
	}
	open := cfg.Schedule.Kind != "constant" && cfg.Schedule.Steps == 0
	if err := goOn(cfg); err != nil {
		return nil, nil, err
	}
	j, folder, err := openJob(cfg)
	if err == nil && open && j.Config.Schedule.Steps < j.Config.Train.Steps {
		u.ShortSchedule(j.Config)
	}
	return j, folder, err
}

// wrapDevice is used as [job.Job].Wrap. It is nil except in tests that lose a device.
var wrapDevice func(device.Device) device.Device

// runner carries out one call of headroom run for a configuration.
type runner struct {
	u         *ui.UI
	name, dir string
	verbose   bool
	stage     stage
	folder    *runs.Folder
	crash     *crashLog
	device    string // name of the device that the run used; "" if it opened none
	progress  ui.Progress
	stream    *ui.Stream // nil without --json
	web       *web
	account   account
	told      func(*configs.Config) ([]string, error) // who is told about a run
	notes     *notify.Notifier
}

func (s *runner) run(ctx context.Context, interrupt <-chan struct{}, j *job.Job, folder *runs.Folder) (harness.Result, error) {
	j.Passed, j.Squeezed, j.Wrap = s.u.Passed(), s.squeezed, wrapDevice
	books := j.Session()
	books.Version, books.OnEntry, books.OnStep = readBuild().named(), s.entry, s.step
	if s.verbose {
		books.Log = consoleLog(s.u.Screen)
	}
	session, err := harness.Begin(folder, books)
	if err != nil {
		return harness.Result{}, err
	}
	o := j.Run()
	o.Interrupt = interrupt
	result, err := harness.Run(ctx, session, o)
	s.device = j.Device()
	return result, err
}

func (s *runner) squeezed(q configs.Squeeze, begins bool) {
	s.stream.Send(ui.SqueezeLine{Kind: "squeeze", Begins: begins, From: q.From, To: q.To, Take: q.Take})
	s.u.Squeezed(q, begins)
}

func (s *runner) entry(e runs.Entry) {
	s.account.entry(e)
	s.notes.Entry(e)
	if s.stage.in(left) {
		return
	}
	s.stream.Send(e)
	if e.Failed() {
		s.progress.Failures++
	}
	if !s.verbose { // otherwise the log says it
		s.u.Entry(e)
	}
}

func (s *runner) step(r runs.StepReport) {
	s.account.step(r)
	if s.stage.in(left) {
		return
	}
	s.stream.Send(ui.StepLine{Kind: "step", StepReport: r})
	s.progress.Step(r)
}

// end draws the report and then says how the run went, so that the last line is the outcome. It
// returns err.
func (s *runner) end(result harness.Result, err error) error {
	already := err == nil && result.Attempts == 0
	s.u.Screen.Show("")
	if _, missing := os.Stat(filepath.Join(s.dir, report.Page)); !already || missing != nil {
		s.report() // even for a finished run: it may have been killed just before its report was drawn
	}
	switch {
	case already:
		s.u.AlreadyFinished(s.name, s.dir, result.Steps)
	case err == nil:
		s.u.Finished(result)
	case ui.IsInterrupted(err):
		lost := (*harness.DeviceGoneError)(nil)
		if errors.As(err, &lost) {
			s.u.Say("%v", lost)
		}
		s.u.Interrupted(result, s.progress.Total, lost == nil && errors.Is(err, harness.ErrInterrupted), s.kept())
	}
	s.last(result, err)
	return err
}

// last prints the last line of --json.
func (s *runner) last(result harness.Result, err error) {
	last := ui.ResultLine{Kind: "result", Status: ui.ExitStatus(err), Name: s.name, Folder: s.dir,
		Report: filepath.Join(s.dir, report.Page), Finished: result.Finished, Steps: result.Steps,
		Resumed: result.Resumed, Failures: result.Failures, DeviceGone: result.DeviceGone, Plan: result.Plan}
	if err != nil {
		last.Error = err.Error()
	}
	s.stream.Send(last)
}

// kept reports whether there is a checkpoint to continue from.
func (s *runner) kept() bool {
	all, err := filepath.Glob(filepath.Join(s.dir, "checkpoints", "step-*"))
	return err == nil && len(all) > 0
}

// report draws the run's report. The run is complete without one, so a failure is
// only a warning.
func (s *runner) report() {
	r, err := drawn(s.dir, s.device, s.u.Now())
	if err == nil {
		err = writeReport(s.u, r, s.dir)
	}
	if err != nil {
		s.u.NoReport(err)
	}
}

// consoleLog returns a logger that prints to s, between headroom's other lines. It leaves out
// the entries that only repeat what the command says when it ends.
func consoleLog(s *ui.Screen) *zap.Logger {
	config := zap.NewDevelopmentEncoderConfig()
	return zap.New(besides{zapcore.NewCore(zapcore.NewConsoleEncoder(config), zapcore.AddSync(s), zapcore.DebugLevel)})
}

// besides is a log core that drops the last entry of a run, because [runner.end] says the same.
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
		if f.Key == "kind" && ui.Ending(runs.Kind(f.String)) {
			return nil
		}
	}
	return b.Core.Write(e, fields)
}
