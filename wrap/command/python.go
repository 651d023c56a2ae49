package command

import (
	"bufio"
	"errors"
	"io"
	"os"
	"path"
	"slices"
	"strings"
)

// Python is a program in Python that a command starts, directly or through a launcher.
type Python struct {
	Interpreter string   // a program, as [Line.Args] names one
	Words       []string // what follows the interpreter: a script, or -m and a module
}

// Python returns the Python program that trains, and the interpreter that the command names: python itself,
// the one in the first line of a launcher such as torchrun, or else the first one in the command's PATH. It starts
// nothing. The error says why there is nothing to be read.
func (c Line) Python() (Python, error) {
	launch, err := Peel(c)
	switch {
	case err != nil:
		return Python{}, err
	case launch.moved():
		return Python{}, errors.New("the command is started in another folder")
	case launch.Script != "":
		return Python{c.interpreter(launch.At), []string{launch.Script}}, nil
	case launch.Module != "":
		return Python{c.interpreter(launch.At), []string{"-m", launch.Module}}, nil
	}
	return Python{}, errors.New(launch.Program + " is not a Python script")
}

// interpreter returns the last interpreter that the words before a script name.
func (c Line) interpreter(script int) string {
	for _, word := range slices.Backward(c.Args[:script]) {
		if isPython(path.Base(word)) {
			return word
		}
		if found := c.shebang(word); isPython(path.Base(found)) {
			return found
		}
	}
	for _, name := range []string{"python3", "python"} {
		if (Line{Args: []string{name}, Env: c.Env, Dir: c.Dir}).Startable() == nil {
			return name
		}
	}
	return "python3"
}

// shebang returns the program that the first line of a program names, or "".
func (c Line) shebang(program string) string {
	for _, place := range c.Candidates(program) {
		info, err := os.Stat(c.From(place))
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		file, err := os.Open(c.From(place))
		if err != nil {
			return ""
		}
		line, _ := bufio.NewReader(io.LimitReader(file, 512)).ReadString('\n') // a binary has no such line
		_ = file.Close()                                                       // nothing was written
		words, ok := strings.CutPrefix(line, "#!")
		fields := strings.Fields(words)
		if !ok || len(fields) == 0 {
			return ""
		}
		if path.Base(fields[0]) == "env" && len(fields) > 1 {
			return fields[1]
		}
		return fields[0]
	}
	return ""
}
