package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"headroom/cmd/headroom/ui"
)

func kernelCommand(u *ui.UI) *cli.Command {
	command := &cli.Command{
		Name:      "kernel",
		Usage:     "make Jupyter offer a kernel that runs under headroom",
		ArgsUsage: "[install | uninstall]",
		Description: `headroom kernel install adds a kernel to those that Jupyter offers: it runs
notebooks under headroom run, with the extension headroom_train loaded.
headroom kernel uninstall removes it. headroom kernel lists them.
A notebook needs no such kernel: %load_ext headroom_train in a cell is enough,
but then nothing is recorded in headroom-runs.`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "name", Usage: "the kernel's `NAME`, by which Jupyter's commands know it", Value: "headroom"},
			boolFlag("user", "for this user, in any environment: this is the default"),
			&cli.StringFlag{Name: "prefix", Usage: "for Jupyter in the environment at `FOLDER`"},
			&cli.StringFlag{Name: "python", Usage: "the `PROGRAM` that runs the cells", DefaultText: "the first python3 in PATH"},
		},
		Action: func(c *cli.Context) error { return kernelAction(u, c) },
	}
	command.BashComplete = completeFlags(command, func() []string { return []string{"install", "uninstall"} })
	return command
}

func kernelAction(u *ui.UI, c *cli.Context) error {
	words := c.Args().Slice()
	if isSet(c, "prefix") && c.Bool("user") {
		return ui.Usagef("leave out one of them", "--prefix has no effect with --user")
	}
	kernels, err := kernelsFolder(c.String("prefix"))
	if err != nil {
		return err
	}
	name := c.String("name")
	if !kernelName.MatchString(name) {
		return ui.Usagef("", "--name %s: not a valid name for a kernel; allowed: letters, digits, and . _ -", name)
	}
	switch dir := filepath.Join(kernels, strings.ToLower(name)); {
	case len(words) == 0:
		return listKernels(u, kernels)
	case len(words) > 1:
		return ui.Usagef("headroom kernel --help", "kernel %s takes no arguments, got %q", words[0], words[1])
	case words[0] == "install":
		return installKernel(u, dir, c.String("python"))
	case words[0] == "uninstall":
		return uninstallKernel(u, dir)
	}
	return ui.Usagef("headroom kernel --help", "kernel has no command %q", words[0])
}

// kernelName is what Jupyter allows.
var kernelName = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)

// kernelFile is the name of the file by which Jupyter knows a kernel.
const kernelFile = "kernel.json"

// kernelSpec is that file's content. Argv is the command line of the kernel, in which Jupyter replaces
// {connection_file}.
type kernelSpec struct {
	Argv          []string       `json:"argv"`
	DisplayName   string         `json:"display_name"`
	Language      string         `json:"language"`
	InterruptMode string         `json:"interrupt_mode"`
	Metadata      map[string]any `json:"metadata"`
}

// ours reports whether s runs a kernel under headroom.
func (s kernelSpec) ours() bool {
	return len(s.Argv) > 3 && strings.HasPrefix(filepath.Base(s.Argv[0]), "headroom") && s.Argv[1] == "run" && s.Argv[2] == "--"
}

// kernelsFolder returns the folder in which Jupyter looks for kernels: that of the environment at prefix,
// or, if prefix is empty, this user's.
func kernelsFolder(prefix string) (string, error) {
	if prefix != "" {
		dir, err := filepath.Abs(filepath.Join(prefix, "share", "jupyter", "kernels"))
		return dir, ui.AsUsage(err)
	}
	if dir := os.Getenv("JUPYTER_DATA_DIR"); dir != "" {
		return filepath.Join(dir, "kernels"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", ui.AsUsage(err)
	}
	if runtime.GOOS == "darwin" {
		return filepath.Join(home, "Library", "Jupyter", "kernels"), nil
	}
	return filepath.Join(cmp.Or(os.Getenv("XDG_DATA_HOME"), filepath.Join(home, ".local", "share")), "jupyter", "kernels"), nil
}

// readKernel returns the kernel in dir. If there is none, the error wraps fs.ErrNotExist.
func readKernel(dir string) (s kernelSpec, err error) {
	text, err := os.ReadFile(filepath.Join(dir, kernelFile))
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(text, &s); err != nil {
		return s, fmt.Errorf("%s: %w", filepath.Join(dir, kernelFile), err)
	}
	return s, nil
}

func installKernel(u *ui.UI, dir, python string) error {
	there, err := readKernel(dir)
	if err == nil && !there.ours() {
		return ui.Usagef("give a different --name", "%s is a kernel that headroom has not installed", dir)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return ui.AsUsage(err)
	}
	if python, err = kernelPython(python); err != nil {
		return err
	}
	headroom, err := os.Executable()
	if err != nil {
		return fmt.Errorf("kernel install: %w", err)
	}
	s := kernelSpec{
		Argv:        []string{headroom, "run", "--", python, "-m", "ipykernel_launcher", "--ext=headroom_train", "-f", "{connection_file}"},
		DisplayName: fmt.Sprintf("Python 3 (%s)", filepath.Base(dir)),
		Language:    "python",
		// A signal would go to headroom as well, as a request to stop.
		InterruptMode: "message",
		Metadata:      map[string]any{"debugger": true},
	}
	text, err := json.MarshalIndent(s, "", " ")
	if err != nil {
		return fmt.Errorf("kernel install: %w", err)
	}
	path := filepath.Join(dir, kernelFile)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return ui.AsUsage(fmt.Errorf("install the kernel: %w", err))
	}
	if err := errors.Join(os.WriteFile(path+".new", append(text, '\n'), 0o644), os.Rename(path+".new", path)); err != nil {
		return ui.AsUsage(fmt.Errorf("install the kernel: %w", err))
	}
	return u.Answer(fmt.Sprintf("kernel %s installed in %s: in a notebook, choose %s", filepath.Base(dir), dir, s.DisplayName))
}

// kernelPython returns the full path of the Python that runs a kernel's cells: that of program, or of the first
// python3 in PATH if program is empty. It must have ipykernel.
func kernelPython(program string) (string, error) {
	path, err := exec.LookPath(cmp.Or(program, "python3"))
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return "", ui.Usagef("name another one with --python", "%w", err)
	}
	if err := exec.Command(path, "-c", "import ipykernel").Run(); err != nil {
		return "", ui.Usagef(path+" -m pip install ipykernel; or name another Python with --python", "%s has no ipykernel", path)
	}
	return path, nil
}

// uninstallKernel removes a kernel that headroom has installed. What others have put beside it stays.
func uninstallKernel(u *ui.UI, dir string) error {
	s, err := readKernel(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return ui.Usagef(`"headroom kernel" lists those that headroom has installed`, "no kernel in %s", dir)
	case err != nil:
		return ui.AsUsage(err)
	case !s.ours():
		return ui.Usagef("jupyter kernelspec uninstall "+filepath.Base(dir), "%s is a kernel that headroom has not installed", dir)
	}
	if err := os.Remove(filepath.Join(dir, kernelFile)); err != nil {
		return ui.AsUsage(fmt.Errorf("uninstall the kernel: %w", err))
	}
	_ = os.Remove(dir) // unless there is something else in it
	return u.Answer(fmt.Sprintf("kernel %s removed from %s", filepath.Base(dir), dir))
}

// listKernels prints the kernels of a folder that headroom has installed.
func listKernels(u *ui.UI, kernels string) error {
	found, err := filepath.Glob(filepath.Join(kernels, "*", kernelFile))
	if err != nil {
		return fmt.Errorf("kernel: %w", err)
	}
	var b strings.Builder
	table(&b, func(w *tabwriter.Writer) {
		for _, file := range found {
			if s, err := readKernel(filepath.Dir(file)); err == nil && s.ours() {
				fmt.Fprintf(w, "%s\t%s\t%s\n", filepath.Base(filepath.Dir(file)), s.DisplayName, s.Argv[3])
			}
		}
	})
	return u.Answer(cmp.Or(strings.TrimRight(b.String(), "\n"), fmt.Sprintf("none in %s; headroom kernel install adds one", kernels)))
}
