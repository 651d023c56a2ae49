package main

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"headroom/cmd/headroom/ui"
	"headroom/cmd/headroom/ui/uitest"
)

// onTerminal runs headroom on a terminal with the given number of columns and returns
// what it wrote there.
func onTerminal(t *testing.T, env []string, columns string, args string) string {
	t.Helper()
	if _, err := exec.LookPath("script"); err != nil {
		t.Skip("SKIPPED: there is no script(1) to make a terminal with")
	}
	inEmptyFolder(t, "endless.yaml", endless)
	command := exec.Command("script", "-qec", "stty columns "+columns+"; headroom "+args, "/dev/null")
	command.Env = append(os.Environ(), env...)
	command.Stdin = strings.NewReader("")
	out, err := command.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return strings.ReplaceAll(string(out), "\r\n", "\n")
}

var (
	colours = regexp.MustCompile("\x1b\\[[0-9]*m")
	control = regexp.MustCompile("[\x00-\x09\x0b-\x1f]")
)

const short = "run endless.yaml --set train.steps=200 --set train.checkpoint_every=50"

func TestTerminal(t *testing.T) {
	written := onTerminal(t, []string{"TERM=xterm", "NO_COLOR="}, "60", short)
	if !strings.Contains(written, "\rstep ") {
		t.Errorf("no line was rewritten:\n%q", written)
	}
	if !strings.Contains(written, ui.Green+"headroom: done: 200 steps") {
		t.Errorf("no colour:\n%q", written)
	}
	for _, live := range regexp.MustCompile("\r(step [^\x1b]*)").FindAllStringSubmatch(written, -1) {
		if n := len([]rune(live[1])); n > 59 {
			t.Errorf("%d columns of 60: %q", n, live[1])
		}
	}
	for _, row := range uitest.Terminal(colours.ReplaceAllString(written, "")) {
		if row != "" && !strings.HasPrefix(row, "headroom: ") && !strings.HasPrefix(row, "          ") || len([]rune(row)) > 60 {
			t.Errorf("left on the terminal: %q", row)
		}
	}
}

func TestTerminalNoColor(t *testing.T) {
	written := onTerminal(t, []string{"TERM=xterm", "NO_COLOR=1"}, "60", short)
	if found := colours.FindString(written); found != "" {
		t.Errorf("coloured with %q", found)
	}
	if !strings.Contains(written, "\rstep ") {
		t.Errorf("no line was rewritten:\n%q", written)
	}
}

func TestTerminalDumb(t *testing.T) {
	written := onTerminal(t, []string{"TERM=dumb"}, "60", short)
	if found := control.FindString(written); found != "" {
		t.Errorf("%q was written:\n%q", found, written)
	}
	if !strings.Contains(written, "headroom: step 200/200") {
		t.Errorf("no progress:\n%s", written)
	}
}

func TestTerminalJSON(t *testing.T) {
	written := onTerminal(t, []string{"TERM=xterm", "NO_COLOR=1"}, "60", short+" --json")
	if strings.Contains(written, "\rstep ") || strings.Contains(written, ui.EraseRest) {
		t.Errorf("a line was rewritten between the JSON:\n%q", written)
	}
}
