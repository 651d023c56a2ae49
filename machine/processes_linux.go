package machine

import (
	"bytes"
	"os"
	"strconv"
)

// Process is one process of the machine.
type Process struct {
	PID, Parent int
	Group       int    // its process group
	Start       uint64 // when it was started, in clock ticks since the machine was; distinguishes it from a later process with the same pid
	Name        string // of its program, the first 15 bytes
	Dead        bool   // it has ended, but has not been reaped
	Stopped     bool   // by a signal such as SIGTSTP
}

// Processes returns the processes of the machine. The list is not a snapshot of one
// moment, so callers that signal the processes have to list them again afterwards.
func Processes() []Process {
	folder, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer folder.Close() //nolint:errcheck // nothing was written
	names, _ := folder.Readdirnames(-1)
	var all []Process
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if text, err := os.ReadFile("/proc/" + name + "/stat"); err == nil {
			if p, ok := parseStat(pid, text); ok {
				all = append(all, p)
			}
		}
	}
	return all
}

// LookAtProcess returns the process with the given pid, as it is now. ok is false if there is none.
func LookAtProcess(pid int) (p Process, ok bool) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return Process{}, false
	}
	return parseStat(pid, text)
}

// startWord is the place of the start time in /proc/PID/stat among the words after the name.
const startWord = 19

// parseStat parses "pid (name) state parent group ...". The name may contain any characters.
func parseStat(pid int, text []byte) (Process, bool) {
	name, rest := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	words := bytes.Fields(text[rest+1:])
	if len(words) < 2 || name < 0 || rest < name {
		return Process{}, false
	}
	parent, err := strconv.Atoi(string(words[1]))
	state := words[0][0]
	p := Process{PID: pid, Parent: parent, Name: string(text[name+1 : rest]), Dead: state == 'Z' || state == 'X', Stopped: state == 'T'}
	if len(words) > 2 {
		p.Group, _ = strconv.Atoi(string(words[2])) // the kernel writes a number
	}
	if len(words) > startWord {
		p.Start, _ = strconv.ParseUint(string(words[startWord]), 10, 64)
	}
	return p, err == nil
}
