package child

import (
	"bufio"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"headroom/wrap/command"
)

// TestStartError covers every reason why a program cannot be started.
func TestStartError(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	write("plain", "echo", 0o644)
	write("nowhere", "#!/no/such/interpreter\n", 0o755)
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int{
		"": 127, "no-such-command": 127, "./missing": 127, "plain/missing": 127, "./plain": 126, "plain": 126, "./sub": 126, "./nowhere": 126,
	} {
		_, err := Start(command.Line{Args: []string{name}, Env: []string{"PATH=/nonexistent:" + dir}, Dir: dir}, Options{})
		failed := (*command.StartError)(nil)
		if !errors.As(err, &failed) || failed.Code != want || failed.Program != name || failed.Err == nil {
			t.Errorf("%q: %v (%+v), want %d", name, err, failed, want)
		}
	}
	if _, err := Start(command.Line{}, Options{}); err == nil {
		t.Error("nothing was started")
	}
}

// TestLookup checks that a script without a #! line is run by the shell, and that a
// program is found relative to the command's folder or through the command's PATH.
func TestLookup(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "script"), []byte("echo \"script $1\"\nexit 9\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []command.Line{
		{Args: []string{"./script", "ran"}, Dir: dir}, {Args: []string{"script", "ran"}, Env: []string{"PATH=" + dir}},
		{Args: []string{"script", "ran"}, Env: []string{"PATH=/nonexistent:", "PATH=:/nonexistent"}, Dir: dir},
	} {
		read, wrote, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		child, err := Start(c, Options{Stdout: wrote})
		if err != nil {
			t.Errorf("%+v: %v", c, err)
			continue
		}
		exit := waited(t, child)
		_ = wrote.Close()
		line, _ := bufio.NewReader(read).ReadString('\n')
		if exit.Code != 9 || line != "script ran\n" {
			t.Errorf("%+v: %+v, %q", c, exit, line)
		}
	}
}
