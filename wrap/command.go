package wrap

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"headroom/memory"
	"headroom/runs"
)

// Command is a user's training command, as it was given. It is a value: methods that
// change it return a new one.
type Command struct {
	Args []string // program and arguments; not empty, and not interpreted by a shell
	Env  []string // "KEY=VALUE", as in os.Environ; the last entry for a key counts
	Dir  string   // working directory, absolute
}

// Getenv returns the value of a variable in the command's environment, and whether the
// variable is set.
func (c Command) Getenv(key string) (value string, set bool) {
	for _, entry := range c.Env {
		if k, v, ok := strings.Cut(entry, "="); ok && k == key {
			value, set = v, true
		}
	}
	return value, set
}

// Programs returns the names of the files in the directories of the command's PATH,
// sorted and without duplicates.
func (c Command) Programs() []string {
	var all []string
	for _, place := range c.candidates("*") {
		entries, _ := os.ReadDir(c.From(filepath.Dir(place))) // a directory that cannot be read contributes no names
		for _, e := range entries {
			if !e.IsDir() {
				all = append(all, e.Name())
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// From converts a path that the command uses, relative to the command's working
// directory, into one that this process can use from its own working directory.
func (c Command) From(path string) string {
	if filepath.IsAbs(path) || c.Dir == "" {
		return path
	}
	return filepath.Join(c.Dir, path)
}

// candidates returns the paths where a program may be found, best first.
func (c Command) candidates(name string) []string {
	if strings.Contains(name, "/") {
		return []string{name}
	}
	if name == "" {
		return nil
	}
	search, set := c.Getenv("PATH")
	if !set {
		search = "/bin:/usr/bin"
	}
	var all []string
	for dir := range strings.SplitSeq(search, ":") {
		if dir == "" || dir == "." {
			all = append(all, "./"+name) // Join would drop the "./" and leave a name that is looked up in PATH
			continue
		}
		all = append(all, filepath.Join(dir, name))
	}
	return all
}

// Exit describes how one life of a command ended, and holds the evidence that it left
// behind. It is plain data. [Classify] reads nothing else.
type Exit struct {
	Code    int            `json:"code"`              // exit status; 128 + n if signal n ended it
	Signal  syscall.Signal `json:"signal,omitempty"`  // signal that ended it; 0 if it exited by itself
	Stopped bool           `json:"stopped,omitempty"` // headroom or the user had asked it to stop
	Began   time.Time      `json:"began"`             // when it was started
	Seconds float64        `json:"seconds"`           // how long it lived
	Tail    []byte         `json:"-"`                 // the newest output of stdout and stderr, in the order in which it came; its lines are whole unless they are huge
	Ranks   []RankError    `json:"ranks,omitempty"`   // what a launcher's workers left in their error files
	Kernel  Kernel         `json:"kernel"`            // what the kernel counted during this life
	GPUs    []GPU          `json:"gpus,omitempty"`    // the GPUs that the command could use, as seen from outside
	Ulimit  memory.Bytes   `json:"ulimit,omitempty"`  // host memory that each of its processes may allocate; 0 if not limited
}

// RankError is what one worker of a launcher left in its error file, such as
// torchrun's error.json.
type RankError struct {
	Rank    int       `json:"rank"`
	Time    time.Time `json:"time"` // when it failed; zero if not known
	Message string    `json:"message"`
}

// Kernel is how much the kernel's counts of OOM kills rose during one life of a command.
type Kernel struct {
	GroupKills  int64 `json:"group_kills"`  // oom_kill in memory.events of the command's control group
	SystemKills int64 `json:"system_kills"` // oom_kill in /proc/vmstat
}

// GPU is the memory of one GPU during one life of a command, sampled from outside the
// command. An amount that is not known is 0.
type GPU struct {
	Index   int          `json:"index"`
	Total   memory.Bytes `json:"total"`
	Peak    memory.Bytes `json:"peak"`    // the most that the command's processes held together
	Foreign memory.Bytes `json:"foreign"` // what other processes held at the newest sample
	Before  memory.Bytes `json:"before"`  // what other processes held when the command was started
}

// String returns the command as one would type it into a shell.
func (c Command) String() string { return runs.Shell(c.Masked()...) }

// Masked returns the words of c for people to read: without secrets.
func (c Command) Masked() []string {
	masked, _ := runs.Masked(c.Args)
	return masked
}
