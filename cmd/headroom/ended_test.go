package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"headroom/cmd/headroom/ui"
	"headroom/wrap/command"
)

// TestNotStarted starts commands that cannot be started, and checks what the user is told.
func TestNotStarted(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"python3": 0o755, "torchrun": 0o755, "train.py": 0o644, "train.sh": 0o644, "tool": 0o644, "moved": 0o755} {
		text := "#!/no/such/interpreter\n"
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	gone := filepath.Join(dir, "gone")
	err := notStarted(command.Line{Args: []string{"python3"}, Dir: gone}, &command.StartError{Code: 126, Err: fs.ErrNotExist})
	if child := (*ui.ChildError)(nil); !errors.As(err, &child) || child.Hint != "it is to run in "+gone+", which is no folder; dir in the configuration says where" {
		t.Errorf("%+v", child)
	}
	for _, c := range []struct {
		words []string
		code  int
		hint  string
	}{
		{[]string{"pyhton3", "train.py", "--note", "two words"}, 127, "did you mean python3 train.py --note 'two words'?"},
		{[]string{"torchrn", "train.py"}, 127, "did you mean torchrun train.py?"},
		{[]string{"xyzzy"}, 127, ""},
		{[]string{"train.py", "--bs", "8"}, 126, "did you mean python train.py --bs 8?"},
		{[]string{"./train.py"}, 126, "did you mean python ./train.py?"},
		{[]string{"./train.sh"}, 126, "did you mean bash ./train.sh?"},
		{[]string{"./tool"}, 126, "chmod +x ./tool makes it executable"},
		{[]string{"python3 train.py | tee log"}, 127, "this needs a shell: -- bash -o pipefail -c 'python3 train.py | tee log'"},
		{[]string{"python3 train.py"}, 127, "give the words of the command separately, without quotes around the whole command: -- python3 train.py"},
		{[]string{"./nowhere"}, 127, ""},
		{[]string{dir}, 126, ""},
	} {
		line := command.Line{Args: c.words, Env: []string{"PATH=" + dir}, Dir: dir}
		err := notStarted(line, line.Startable())
		child := (*ui.ChildError)(nil)
		if !errors.As(err, &child) || child.Code != c.code || child.Hint != c.hint {
			t.Errorf("%q: %v, %+v; want %d, %q", c.words, err, child, c.code, c.hint)
		}
	}
}
