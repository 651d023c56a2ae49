package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestMain makes this test binary act as headroom for the scripts and for the tests
// that start processes, so that they run main itself.
func TestMain(m *testing.M) {
	if _, set := os.LookupEnv("HEADROOM_RUNS_DIR"); !set { // runsdir.txtar has the default
		_ = os.Setenv("HEADROOM_RUNS_DIR", "runs")
	}
	testscript.Main(m, map[string]func(){"headroom": main, "headroom-lossy": lossy, "headroom-fatal": fatal, "headroom-stuck": stuck, "headroom-toy": toy})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(e *testscript.Env) error {
			e.Setenv("SSH_CONNECTION", "")
			e.Setenv("HEADROOM_RUNS_DIR", "runs")
			return nil
		},
		Condition: func(name string) (bool, error) {
			if name != "mount" {
				return false, fmt.Errorf("unknown condition %q", name)
			}
			return exec.Command("unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt").Run() == nil, nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":     exits4script,
			"jsonlines": jsonLines,
		},
	})
}

// exits4script implements "exits STATUS COMMAND [ARGUMENTS]" in scripts: the command
// must end with exactly that status. After it, the script commands stdout and stderr
// can check the output.
func exits4script(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits STATUS COMMAND [ARGUMENTS]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	if failed := (*exec.ExitError)(nil); errors.As(err, &failed) {
		got = failed.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit status %d, want %d", got, want)
	}
	if text := ts.ReadFile("stderr"); strings.Contains(text, "goroutine ") {
		ts.Fatalf("a stack trace was printed")
	}
}

// jsonLines implements "jsonlines FILE [KIND]…" in scripts: every line of FILE must
// be a JSON object, and each KIND must be the kind of at least one of them.
func jsonLines(ts *testscript.TestScript, neg bool, args []string) {
	seen := map[string]bool{}
	text := bufio.NewScanner(strings.NewReader(ts.ReadFile(args[0])))
	for text.Scan() {
		var line map[string]any
		if err := json.Unmarshal(text.Bytes(), &line); err != nil {
			ts.Fatalf("%q: %v", text.Text(), err)
		}
		kind, _ := line["kind"].(string)
		seen[kind] = true
	}
	if len(seen) == 0 {
		ts.Fatalf("%s is empty", args[0])
	}
	for _, kind := range args[1:] {
		if seen[kind] == neg {
			ts.Fatalf("kinds seen: %v; %s among them: %v", seen, kind, seen[kind])
		}
	}
}
