// Package command reads a training command: its words, its environment, and the wrappers and
// launchers in front of the program that trains. It starts nothing.
//
//	Line    what the user typed: words, environment and folder
//	Peel    finds the program that trains, and how many ranks of it are started
//	Python  finds the script that trains, and its interpreter
//	Exit    how one attempt of a command ended, with the evidence that it left behind; plain data
package command

import (
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"headroom/nvml"
	"headroom/runs"
)

// Line is a user's training command, as it was given. It is a value: methods that
// change it return a new one.
type Line struct {
	Args []string // program and arguments; not empty, and not interpreted by a shell
	Env  []string // "KEY=VALUE", as in os.Environ; the last entry for a key counts
	Dir  string   // working directory, absolute
}

// Getenv returns the value of a variable in the command's environment, and whether the
// variable is set.
func (c Line) Getenv(key string) (value string, set bool) {
	for _, entry := range c.Env {
		if k, v, ok := strings.Cut(entry, "="); ok && k == key {
			value, set = v, true
		}
	}
	return value, set
}

// Programs returns the names of the files in the directories of the command's PATH,
// sorted and without duplicates.
func (c Line) Programs() []string {
	var all []string
	for _, place := range c.Candidates("*") {
		entries, _ := os.ReadDir(c.From(filepath.Dir(place))) // a directory that cannot be read contributes no names
		for _, e := range entries {
			if !e.IsDir() {
				all = append(all, e.Name())
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// From converts a path that the command uses, relative to the command's working
// directory, into one that this process can use from its own working directory.
func (c Line) From(path string) string {
	if filepath.IsAbs(path) || c.Dir == "" {
		return path
	}
	return filepath.Join(c.Dir, path)
}

// Candidates returns the paths where a program may be found, best first.
func (c Line) Candidates(name string) []string {
	if strings.Contains(name, "/") {
		return []string{name}
	}
	if name == "" {
		return nil
	}
	search, set := c.Getenv("PATH")
	if !set {
		search = "/bin:/usr/bin"
	}
	var all []string
	for dir := range strings.SplitSeq(search, ":") {
		if dir == "" || dir == "." {
			all = append(all, "./"+name) // Join would drop the "./" and leave a name that is looked up in PATH
			continue
		}
		all = append(all, filepath.Join(dir, name))
	}
	return all
}

// String returns the command as one would type it into a shell.
func (c Line) String() string { return runs.Shell(c.Masked()...) }

// Masked returns the words of c for people to read: without secrets.
func (c Line) Masked() []string {
	masked, _ := runs.Masked(c.Args)
	return masked
}

// StartError says that the program of a command could not be started.
type StartError struct {
	Program string // as the command names it
	Code    int    // exit status that a shell gives: 127 if the program is not found, 126 if it cannot be executed
	Err     error
}

func (e *StartError) Error() string {
	program, _ := runs.Masked([]string{e.Program}) // as in API_KEY=… python, which needs a shell or env
	return "start " + program[0] + ": " + e.Err.Error()
}

func (e *StartError) Unwrap() error { return e.Err }

// Abs returns the absolute form of a path in the command, without the first slash, as
// an [fs.FS] needs it.
func (c Line) Abs(name string) string {
	if !path.IsAbs(name) {
		name = path.Join("/", c.Dir, name)
	}
	return strings.TrimPrefix(path.Clean(name), "/")
}

// visible returns the GPUs that a command may use, given the value of its
// CUDA_VISIBLE_DEVICES. It reads the value as CUDA does: as indices or prefixes of UUIDs,
// up to the first entry that names no GPU. Indices are taken to be NVML's. These are the
// same as CUDA's if all GPUs are of one model, or if CUDA_DEVICE_ORDER is PCI_BUS_ID. If
// the variable is not set, visible returns all GPUs.
func visible(value string, set bool, all []nvml.GPU) []nvml.GPU {
	if !set {
		return all
	}
	var chosen []nvml.GPU
	for _, word := range strings.Split(value, ",") {
		word = strings.TrimSpace(word)
		n, err := strconv.Atoi(word)
		i := slices.IndexFunc(all, func(g nvml.GPU) bool {
			if err == nil {
				return g.Index == n
			}
			return word != "" && strings.HasPrefix(g.UUID, word)
		})
		if i < 0 {
			break
		}
		chosen = append(chosen, all[i])
	}
	return chosen
}

// GPUs returns the GPUs that the command may use. all lists the GPUs of the machine.
func (c Line) GPUs(all []nvml.GPU) []nvml.GPU {
	value, set := c.Getenv("CUDA_VISIBLE_DEVICES")
	return visible(value, set, all)
}
