package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"headroom/cmd/headroom/ui"
	"headroom/spelling"
	"headroom/wrap/command"
)

// notStarted returns the error for a command that could not be started because of err. It carries
// the exit status that a shell would give, and a hint about what the user probably meant.
func notStarted(c command.Line, err error) error {
	var start *command.StartError
	if !errors.As(err, &start) {
		return err
	}
	return &ui.ChildError{Code: start.Code, Err: err, Hint: meant(c, start.Err)}
}

// neverBegan returns the error for a command whose script or module, called name, Python could not
// open. It carries the command's own exit status.
func neverBegan(c command.Line, name string, code int) error {
	err := &ui.ChildError{Code: code, Err: fmt.Errorf("nothing has run, and no run is kept: Python cannot open %s", name)}
	beside, _ := filepath.Glob(filepath.Join(filepath.Dir(c.From(name)), "*.py")) // without any, there is nothing to suggest
	for i, path := range beside {
		beside[i] = filepath.Base(path)
	}
	if near := spelling.Nearest(filepath.Base(name), beside); near != "" && strings.HasSuffix(name, ".py") {
		err.Hint = fmt.Sprintf("did you mean %s?", filepath.Join(filepath.Dir(name), near))
	}
	return err
}

// meant returns a hint about what the user probably meant by a command that cannot be started
// because of why. It returns "" if there is nothing to guess from.
func meant(c command.Line, why error) string {
	if len(c.Args) == 0 {
		return ""
	}
	switch info, err := os.Stat(c.From(c.Args[0])); {
	case err != nil:
		return meantByWords(c)
	case info.IsDir():
		return ""
	}
	return meantByFile(c, why)
}

// meantByFile is meant for a command whose first word is a file that cannot be started.
func meantByFile(c command.Line, why error) string {
	word := c.Args[0]
	switch {
	case filepath.Ext(word) == ".py":
		return fmt.Sprintf("did you mean python %v?", c)
	case filepath.Ext(word) == ".sh":
		return fmt.Sprintf("did you mean bash %v?", c)
	case !strings.Contains(word, "/"):
		return fmt.Sprintf("./%s is a file here; chmod +x makes it executable", word)
	case errors.Is(why, fs.ErrPermission):
		return fmt.Sprintf("chmod +x %v makes it executable", command.Line{Args: c.Args[:1]})
	case errors.Is(why, fs.ErrNotExist):
		return "its first line names an interpreter that does not exist"
	}
	return ""
}

// meantByWords is meant for a command whose first word is no file.
func meantByWords(c command.Line) string {
	word, rest := c.Args[0], c.Args[1:]
	switch words := strings.Fields(word); {
	case len(words) > 1 && strings.ContainsAny(word, "|&;<>"):
		return fmt.Sprintf("this needs a shell: -- %v", command.Line{Args: []string{"bash", "-o", "pipefail", "-c", strings.Join(c.Args, " ")}})
	case len(words) > 1:
		return fmt.Sprintf("give the words of the command separately, without quotes around the whole command: -- %v", command.Line{Args: append(words, rest...)})
	case !strings.Contains(word, "/"):
		if near := spelling.Nearest(word, c.Programs()); near != "" {
			return fmt.Sprintf("did you mean %v?", command.Line{Args: append([]string{near}, rest...)})
		}
	}
	return ""
}
