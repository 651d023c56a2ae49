package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/urfave/cli/v2"

	"headroom/report"
)

func reportCommand(u *ui) *cli.Command {
	command := &cli.Command{
		Name:      "report",
		Usage:     "draw a run's report again",
		ArgsUsage: "RUN",
		Description: `Without flags report.html and report.md in the run's folder are replaced. With
--format or --output one page is written instead: to the file, or to stdout.
A run may be reported while it works.`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "format", Usage: "`html or md`; by the name of the file if not given"},
			&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "write to `FILE`; - is stdout"},
		},
		Action: func(c *cli.Context) error {
			word, err := oneArgument(c, "the name of a run", `"headroom status" lists the runs here`)
			if err != nil {
				return err
			}
			format, err := formatOf(c.String("format"), c.String("output"))
			if err != nil {
				return err
			}
			dir, err := runFolder(word)
			if err != nil {
				return err
			}
			r, err := drawn(dir, "", u.now())
			if err != nil {
				return err
			}
			if format == "" {
				return writeReport(u, r, dir)
			}
			return writePage(u, r, format, c.String("output"))
		},
	}
	command.BashComplete = completeFlags(command, runNames)
	return command
}

// formatOf is the format that the flags ask for, "" for the run's own pages.
func formatOf(format, output string) (string, error) {
	if format == "" && output != "" {
		format = map[string]string{".html": "html", ".htm": "html", ".md": "md"}[filepath.Ext(output)]
		if format == "" {
			return "", usagef("add --format html or --format md", "--output %s: the name does not say which format", output)
		}
	}
	if format != "" && format != "html" && format != "md" {
		return "", usagef("", "--format %s: html or md", format)
	}
	return format, nil
}

// drawn is the report of the run in dir. A run's configuration says what the
// journal does not have to; device is the name of the one it ran on, "" if that
// is not known any more.
func drawn(dir, device string, now time.Time) (*report.Report, error) {
	in, err := report.Read(dir)
	if err != nil {
		return nil, fmt.Errorf("report %s: %w", dir, err)
	}
	in.Made = now
	if cfg, err := keptConfig(dir); err == nil {
		in.Effective, in.Device = cfg.Batch.Effective, deviceName(cfg, device)
	}
	return report.New(in), nil
}

func writeReport(u *ui, r *report.Report, dir string) error {
	if err := r.Write(dir); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	u.reportWritten(filepath.Join(dir, "report.html"))
	return nil
}

// writePage writes one page. A file is whole or absent.
func writePage(u *ui, r *report.Report, format, output string) error {
	write := r.HTML
	if format == "md" {
		write = func(w io.Writer) error { return r.Markdown(w, nil) }
	}
	if output == "" || output == "-" {
		return write(u.out)
	}
	f, err := os.CreateTemp(filepath.Dir(output), "."+filepath.Base(output)+".*.tmp")
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	defer func() { _ = os.Remove(f.Name()) }() // gone by then if all went well
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
	u.reportWritten(output)
	return nil
}
