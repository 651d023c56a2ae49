package job

import (
	"context"
	"os"
	"strings"

	"headroom/worker"
	"headroom/wrap/command"
)

// Reading is what was found in a command's script without starting the command.
type Reading struct {
	Findings []worker.Finding `json:"findings,omitempty"` // the script's first, each file's by line
	Unread   string           `json:"unread,omitempty"`   // why the script could not be read, else ""
}

// Read reads the Python script of a command and the local modules that the script imports. It starts the
// interpreter that the command names, and nothing of the command. version is headroom's.
func Read(ctx context.Context, line command.Line, version string) Reading {
	python, err := line.Python()
	if err != nil {
		return Reading{Unread: err.Error()}
	}
	program, err := command.Line{Args: []string{python.Interpreter}, Env: line.Env, Dir: line.Dir}.Program()
	if err != nil {
		return Reading{Unread: err.Error()}
	}
	found, err := worker.Read(ctx, worker.Script{Interpreter: line.From(program), Words: python.Words, Env: line.Environment(), Dir: line.Dir}, version)
	if err != nil {
		return Reading{Unread: err.Error()}
	}
	for i := range found {
		found[i].File = strings.TrimPrefix(found[i].File, line.Dir+string(os.PathSeparator))
	}
	return Reading{Findings: found}
}
