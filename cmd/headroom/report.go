package main

import (
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"headroom/cmd/headroom/ui"
	"headroom/configs"
	"headroom/report"
)

func reportCommand(u *ui.UI) *cli.Command {
	command := &cli.Command{
		Name:      "report",
		Usage:     "redraw a run's report, or make a page about all runs",
		ArgsUsage: "[RUN]",
		Description: `Without flags, report.html and report.md in the run's folder are replaced. With
--format or --output one page is written instead: to the file, or to stdout.
With --open the page is opened in a browser. The run may still be in progress.

Without RUN, the page has a row for each run in ./headroom-runs (or
$HEADROOM_RUNS_DIR), and reports that are out of date are drawn again.`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "format", Usage: "`FORMAT`: html or md; taken from the file's name if not given"},
			&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "write to `FILE`; - is stdout"},
			boolFlag("open", "open the page in a browser"),
		},
		Action: func(c *cli.Context) error {
			format, err := formatOf(c.String("format"), c.String("output"))
			if err != nil {
				return err
			}
			if toStdout(format, c.String("output")) && c.Bool("open") {
				return ui.Usagef("leave out --open, or name a file with --output", "--open needs a file, but the page goes to stdout")
			}
			dir, drawing, err := asked(u, c)
			if err != nil {
				return err
			}
			page, output := filepath.Join(dir, report.Page), c.String("output")
			if format == "" {
				err = writeReport(u, drawing, dir)
			} else {
				page, err = output, writePage(u, drawing, format, output)
			}
			if err != nil || !c.Bool("open") {
				return err
			}
			return openPage(u, page)
		},
	}
	command.BashComplete = completeFlags(command, runNames)
	return command
}

// drawing is the report of one run, or the page about all runs.
type drawing interface {
	Write(dir string) error
	HTML(io.Writer) error
}

// asked returns the drawing that the command line asks for, and the folder that the pages
// belong in.
func asked(u *ui.UI, c *cli.Context) (dir string, d drawing, err error) {
	if !c.Args().Present() {
		d, err = overview(u)
		return configs.RunsDir(), d, err
	}
	word, err := oneArgument(c, "the name of a run", `"headroom status" lists the runs here`)
	if err != nil {
		return "", nil, err
	}
	if dir, err = runFolder(word); err != nil {
		return "", nil, err
	}
	d, err = drawn(dir, "", u.Now())
	return dir, d, err
}

// overview redraws the report of every run in [configs.RunsDir] whose report is missing
// or older than the files that it is drawn from, and returns the page about all runs. A
// run that cannot be read only causes a warning.
func overview(u *ui.UI) (*report.Overview, error) {
	names := runNames()
	if len(names) == 0 {
		return nil, ui.Usagef(ui.StartOne, "there are no runs in %s", configs.RunsDir())
	}
	var all []*report.Report
	for _, name := range names {
		dir := filepath.Join(configs.RunsDir(), name)
		r, err := drawn(dir, "", u.Now())
		if err == nil && outdated(dir) {
			err = r.Write(dir)
		}
		if err != nil {
			u.Warn("%v", err)
		}
		if r != nil {
			all = append(all, r)
		}
	}
	return report.NewOverview(u.Now(), all), nil
}

// outdated reports whether the run in dir has no report, or has continued since its report
// was drawn.
func outdated(dir string) bool {
	page, err := os.Stat(filepath.Join(dir, report.Page))
	if err != nil {
		return true
	}
	return slices.ContainsFunc(records(dir), func(info os.FileInfo) bool { return info.ModTime().After(page.ModTime()) })
}

// records describes the files from which the report of the run in dir is drawn. It leaves out
// files that do not exist.
func records(dir string) (all []os.FileInfo) {
	for _, name := range []string{"journal.jsonl", "metrics.jsonl", "status.json"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err == nil {
			all = append(all, info)
		}
	}
	return all
}

// formatOf returns the format that the flags ask for: html, md, or "" for both pages in the
// run's own folder.
func formatOf(format, output string) (string, error) {
	if format == "" && output != "" {
		format = map[string]string{".html": "html", ".htm": "html", ".md": "md"}[filepath.Ext(output)]
		if format == "" {
			return "", ui.Usagef("add --format html or --format md", "--output %s: the name does not say which format", output)
		}
	}
	if format != "" && format != "html" && format != "md" {
		return "", ui.Usagef("", "--format %s: must be html or md", format)
	}
	return format, nil
}

// drawn returns the report of the run in dir, drawn at the time now. What the journal does
// not record comes from the run's configuration. device is the name of the device that the
// run used, or "" if that is no longer known.
func drawn(dir, device string, now time.Time) (*report.Report, error) {
	in, err := report.Read(dir)
	if err != nil {
		return nil, fmt.Errorf("report %s: %w", dir, err)
	}
	in.Made, in.Version = now, readBuild().named()
	if cfg, err := keptConfig(dir); err == nil {
		in.Effective, in.Device, in.Trained = cfg.Batch.Effective, deviceName(cfg, device), trained(cfg)
		in.Simulated = len(cfg.Device.Squeeze) > 0
	}
	if !in.Running { // a page about a run in progress does not say how to continue it
		_, err := continuable(dir, false)
		in.Resumable = err == nil
	}
	return report.New(in), nil
}

// trained says in words what cfg trains, and on which data.
func trained(cfg *configs.Config) string {
	m, d := cfg.Model, cfg.Data
	text := fmt.Sprintf("%s: %s of width %d", m.Kind, ui.Plural(m.Layers, "layer"), m.Width)
	if cfg.Applies("model.context") {
		text += fmt.Sprintf(", context %d", m.Context)
	}
	text += fmt.Sprintf("; data: %s", d.Kind)
	if cfg.Applies("data.path") {
		text += fmt.Sprintf(" from %s", d.Path)
	}
	text += fmt.Sprintf("; %s, learning rate %g, effective batch %d", cfg.Optimizer.Kind, cfg.Optimizer.LR, cfg.Batch.Effective)
	return text
}

func writeReport(u *ui.UI, d drawing, dir string) error {
	if err := d.Write(dir); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	u.ReportWritten(filepath.Join(dir, report.Page))
	return nil
}

// toStdout reports whether the flags --format and --output ask for a page on stdout.
func toStdout(format, output string) bool {
	return format != "" && (output == "" || output == "-")
}

// openers returns the names of programs that show a page in the browser of the desktop, or in
// the one that $BROWSER names.
func openers() []string {
	if runtime.GOOS == "darwin" {
		return []string{"open"}
	}
	return []string{"xdg-open", "wslview"}
}

// openPage shows a page with the first opener that is installed, and waits for the opener, because
// it may run a browser that uses the terminal. The opener's stderr is not shown, because openers
// use it to list every browser that they failed to find.
func openPage(u *ui.UI, page string) error {
	why := fmt.Errorf("none of %s is installed", strings.Join(openers(), ", "))
	for _, opener := range openers() {
		path, err := exec.LookPath(opener)
		if err != nil {
			continue
		}
		opening := exec.Command(path, page)
		opening.Stdin, opening.Stdout = os.Stdin, u.Out
		if err = opening.Run(); err == nil {
			return nil
		}
		why = fmt.Errorf("%s: %w", opener, err)
		break
	}
	path, err := filepath.Abs(page)
	if err != nil {
		path = page
	}
	address := &url.URL{Scheme: "file", Path: path}
	return &ui.ChildError{Code: 1, Err: fmt.Errorf("open %s: %w", page, why), Hint: fmt.Sprintf("open %v in a browser, or copy the page to a machine that has one", address)}
}

// writePage writes one page to stdout or to the file output. The file appears only once it is
// complete.
func writePage(u *ui.UI, d drawing, format, output string) error {
	write := d.HTML
	if format == "md" {
		switch d := d.(type) {
		case *report.Report:
			write = func(w io.Writer) error { return d.Markdown(w, nil) }
		case *report.Overview:
			write = d.Markdown
		}
	}
	if toStdout(format, output) {
		return write(u.Out)
	}
	f, err := os.CreateTemp(filepath.Dir(output), "."+filepath.Base(output)+".*.tmp")
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	defer func() { _ = os.Remove(f.Name()) }() // if all went well, the file has been renamed by then
	if err := write(f); err != nil {
		_ = f.Close()
		return err
	}
	if err := f.Chmod(0o644); err != nil {
		_ = f.Close()
		return fmt.Errorf("report: %w", err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	if err := os.Rename(f.Name(), output); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	u.ReportWritten(output)
	return nil
}
