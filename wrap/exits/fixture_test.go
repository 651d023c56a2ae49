package exits

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"headroom/memory"
	"headroom/wrap/command"
)

// exitFixture is a file of testdata. It has lines of the form "# key: value", a
// line "---", and the newest output of a command. These keys describe the Exit: exit (the
// status; 1 if not given), signal, stopped, group_kills, system_kills, ulimit, gpu and
// record. The keys family and source say where the fixture comes from. All other keys say
// what the Outcome must be.
type exitFixture struct {
	name string
	want map[string]string
	exit command.Exit
}

func exitFixtures(t testing.TB) []exitFixture {
	t.Helper()
	paths, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(paths) == 0 {
		t.Fatalf("fixtures: %v, %v", paths, err)
	}
	var all []exitFixture
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, parseExitFixture(t, strings.TrimSuffix(filepath.Base(path), ".txt"), string(text)))
	}
	return all
}

func parseExitFixture(t testing.TB, name, text string) exitFixture {
	t.Helper()
	head, body, ok := strings.Cut(text, "---\n")
	if !ok {
		t.Fatalf("%s: no line of three dashes", name)
	}
	f := exitFixture{name: name, want: map[string]string{}, exit: command.Exit{Code: 1, Tail: []byte(body)}}
	for line := range strings.Lines(head) {
		key, value, ok := strings.Cut(strings.TrimSpace(strings.TrimPrefix(line, "# ")), ": ")
		if !ok {
			t.Fatalf("%s: %q is not a key and a value", name, line)
		}
		f.set(t, key, value)
	}
	for _, key := range []string{"kind", "family", "source"} {
		if f.want[key] == "" {
			t.Errorf("%s does not give its %s", name, key)
		}
	}
	return f
}

func (f *exitFixture) set(t testing.TB, key, value string) {
	t.Helper()
	n, _ := strconv.Atoi(value)
	switch key {
	case "exit":
		f.exit.Code = n
	case "signal":
		f.exit.Signal = syscall.Signal(n)
	case "stopped":
		f.exit.Stopped = true
	case "group_kills":
		f.exit.Kernel.GroupKills = int64(n)
	case "system_kills":
		f.exit.Kernel.SystemKills = int64(n)
	case "ulimit":
		f.exit.Ulimit = mustParse(t, value)
	case "gpu":
		f.exit.GPUs = append(f.exit.GPUs, parseGPU(t, value))
	case "record":
		part := strings.SplitN(value, " ", 3)
		at, err := time.Parse(time.RFC3339, part[1])
		if err != nil {
			t.Fatal(err)
		}
		f.exit.Ranks = append(f.exit.Ranks, command.RankError{Rank: digits(part[0]), Time: at, Message: strings.ReplaceAll(part[2], `\n`, "\n")})
	default:
		f.want[key] = value
	}
}

func parseGPU(t testing.TB, text string) (g command.GPU) {
	t.Helper()
	for _, field := range strings.Fields(text) {
		key, value, _ := strings.Cut(field, "=")
		*map[string]*memory.Bytes{"total": &g.Total, "peak": &g.Peak, "foreign": &g.Foreign}[key] = mustParse(t, value)
	}
	return g
}

func mustParse(t testing.TB, text string) memory.Bytes {
	t.Helper()
	b, err := memory.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
