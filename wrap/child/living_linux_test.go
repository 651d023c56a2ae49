package child

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"headroom/machine"
	"headroom/runs"
	"headroom/wrap/command"
	"headroom/wrap/wraptest"
)

// TestLiving checks which processes count as a command that goes on without headroom: the command
// itself, as it was identified, and else those with the run's mark that belong to its job.
func TestLiving(t *testing.T) {
	place := t.TempDir()
	// begin starts a process that waits, and returns its identity once it runs its program.
	begin := func(mark string, group int, writes, line string) runs.Process {
		c := exec.Command("bash", "-c", `exec 5>>"$0"; exec -a "$1" sleep 1000`, writes, line)
		c.Env = append(os.Environ(), mark)
		c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pgid: group}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
		var p machine.Process
		wraptest.Eventually(t, "it sleeps", func() bool {
			p, _ = machine.LookAtProcess(c.Process.Pid)
			env, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", c.Process.Pid)) // the kernel shows it a moment later than the name
			return p.Name == "sleep" && bytes.Contains(env, []byte(mark))
		})
		return runs.Process{PID: p.PID, Group: p.Group, Start: p.Start, Boot: bootID()}
	}
	for _, c := range []struct {
		name    string
		change  func(*runs.Status) // what the status says, after it has said that the first process is the command
		mark    string             // run of the second process; "" is this one
		grouped bool               // the second process is in the first one's group
		writes  bool               // the second process writes where the checkpoints are
		steps   bool               // the second process took the newest step
		script  bool               // the second process runs the command's script
		want    int                // which process is found; 0 for none
	}{
		{"the command", nil, "", false, false, false, false, 1},
		{"no command is known", func(s *runs.Status) { s.Command = nil }, "", true, true, true, false, 0},
		{"the machine was started again", func(s *runs.Status) { s.Command.Boot = "another" }, "", true, true, true, false, 0},
		{"another process has its number", func(s *runs.Status) { s.Command.Start++ }, "another", true, true, false, false, 0},
		{"it has ended, but its job has not", func(s *runs.Status) { s.Command.PID = 1 << 30 }, "", true, false, false, false, 2},
		{"it has ended, and left something running", func(s *runs.Status) { s.Command.PID = 1 << 30 }, "", false, false, false, false, 0},
		{"it has ended, and what it left writes checkpoints", func(s *runs.Status) { s.Command.PID = 1 << 30 }, "", false, true, false, false, 2},
		{"it has ended, and its script goes on in another session", func(s *runs.Status) { s.Command.PID = 1 << 30 }, "", false, false, false, true, 2},
		{"its script goes on, but it is another run's", func(s *runs.Status) { s.Command.PID = 1 << 30 }, "another", false, false, false, true, 0},
		{"it has ended, and what it left trains", func(s *runs.Status) { s.Command.PID = 1 << 30 }, "", false, false, true, false, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			folder, err := runs.Open(filepath.Join(t.TempDir(), "run"))
			if err != nil {
				t.Fatal(err)
			}
			defer folder.Close() //nolint:errcheck // a test's
			mark := FolderMark + command.Resolved(folder.Dir())
			line := begin("UNMARKED=", 0, os.DevNull, "train.py") // where it counts as ended, nothing else tells of it
			group, writes := 0, os.DevNull
			if c.grouped {
				group = line.PID
			}
			if c.writes {
				writes = filepath.Join(place, "step-1.tmp")
			}
			name := "sleep"
			if c.script {
				name = "train.py"
			}
			other := begin(mark+c.mark, group, writes, name)
			if c.steps {
				if err := folder.AddProcessStep(runs.ProcessStep{PID: other.PID, Made: 3}); err != nil {
					t.Fatal(err)
				}
			}
			line.Script = scriptAmong(words(line.PID))
			status := runs.Status{Command: &line, Place: command.Resolved(place)}
			pids := []int{0, line.PID, other.PID}
			if c.change != nil {
				c.change(&status)
			}
			found := Living(folder.Dir(), status)
			if (found == nil) != (c.want == 0) || found != nil && found.PID != pids[c.want] {
				t.Errorf("%+v, want process %d of %v", found, c.want, pids)
			}
		})
	}
}

// TestIdentity checks that a child is identified as itself while it lives, and not afterwards.
func TestIdentity(t *testing.T) {
	c, _ := begun(t, Options{}, "sleep", "1000")
	by := c.Identity()
	if l, ok := identified(by); !ok || l.PID != c.Pid() || by.Group != c.Pid() && c.tty == nil || by.Boot == "" {
		t.Errorf("%+v, %+v, %v", by, l, ok)
	}
	c.Stop()
	waited(t, c)
	if l, ok := identified(by); ok {
		t.Errorf("%+v still counts as running", l)
	}
}
