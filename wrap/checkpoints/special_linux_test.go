package checkpoints

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"headroom/wrap/profile"
	"headroom/wrap/wraptest"
)

// TestSpecialFilesAreNotOpened checks that nothing opens a named pipe, a socket or a device
// where files are looked for, whatever the way to it. Opening a pipe that nobody writes to
// would block; a device stands for all others, since opening it would do no harm.
func TestSpecialFilesAreNotOpened(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, err := range []error{
		os.MkdirAll(at("out/step-3.json/in"), 0o755), os.MkdirAll(at("deep/a"), 0o755), os.WriteFile(at("out/step-1.json"), []byte("{}"), 0o600),
		syscall.Mkfifo(at("out/step-2.json"), 0o600), syscall.Mkfifo(at("out/step-3.json/in/w.pt"), 0o600),
		os.Symlink("step-2.json", at("out/step-4.json")), os.Symlink("/dev/zero", at("out/step-5.json")), syscall.Mkfifo(at("deep/b"), 0o600),
		syscall.Mkfifo(at("config.yaml"), 0o600), syscall.Mkfifo(at("out/latest.txt"), 0o600), syscall.Mkfifo(at("out/x.index.json"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	socket, err := net.Listen("unix", at("out/step-6.json"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = socket.Close() }()
	files := os.DirFS("/")
	for pattern, problems := range map[string]string{
		"out/step-*.json": "step-6.json: it is a socket, not a file; step-5.json: it is a device, not a file; step-3.json: step-3.json/in/w.pt is a named pipe, not a file; step-2.json: it is a named pipe, not a file; step-1.json: ",
		"out/step-2.json": "step-2.json: it is a named pipe, not a file",
		"deep/*/w.pt":     "",
	} {
		m := scriptMatch(t, files, dir, pattern)
		wraptest.Unblocked(t, pattern, func() {
			found, err := Find(m, time.Now().Add(time.Hour), Past{})
			if err != nil {
				t.Error(err)
			}
			var all []string
			for _, c := range found.All {
				all = append(all, filepath.Base(c.Path)+": "+c.Problem)
			}
			slices.Sort(all)
			slices.Reverse(all)
			if got := strings.Join(all, "; "); got != problems {
				t.Errorf("%s: %s", pattern, got)
			}
			if claim, err := Announce(m, "run", nil); err != nil {
				t.Error(err)
			} else if claim != nil {
				_ = claim.Close()
			}
			if names, err := NamesOf(m); err != nil || len(names.Marks()) < len(all) {
				t.Error(names, err)
			}
		})
	}
	wraptest.Unblocked(t, "a pointer", func() {
		if name := pointed(folder{files, strings.TrimPrefix(at("out"), "/")}, profile.Layout{Pointer: "latest.txt"}); name != "" {
			t.Error(name)
		}
	})
	wraptest.Unblocked(t, "an index of shards", func() {
		if err := os.WriteFile(at("y.index.json"), []byte(`{"weight_map": {"a": "out/x.index.json"}}`), 0o600); err != nil {
			t.Error(err)
		}
		if problem := broken(folder{files, strings.TrimPrefix(dir, "/")}, "y.index.json"); !strings.Contains(problem, "is a named pipe") {
			t.Error(problem)
		}
	})
}
