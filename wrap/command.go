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

// Command is a user's training command, as it was given. It is a value: methods
// that change it return a new one.
type Command struct {
	Args []string // program and arguments; not empty, and no shell in between
	Env  []string // "KEY=VALUE", as in os.Environ; of duplicates the last one counts
	Dir  string   // working directory, absolute
}

// Getenv is the value of a variable in the command's environment, and whether it
// is set.
func (c Command) Getenv(key string) (value string, set bool) {
	for _, entry := range c.Env {
		if k, v, ok := strings.Cut(entry, "="); ok && k == key {
			value, set = v, true
		}
	}
	return value, set
}

// Programs are the names of the files on the command's PATH, sorted, each once.
func (c Command) Programs() []string {
	var all []string
	for _, place := range c.candidates("*") {
		entries, _ := os.ReadDir(c.From(filepath.Dir(place))) // a directory that cannot be read has none
		for _, e := range entries {
			if !e.IsDir() {
				all = append(all, e.Name())
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// From is the path that this process, in its own working directory, has to use for a
// path that the command uses in its own.
func (c Command) From(path string) string {
	if filepath.IsAbs(path) || c.Dir == "" {
		return path
	}
	return filepath.Join(c.Dir, path)
}

// candidates are the paths at which a program may be, best first.
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
			all = append(all, "./"+name) // Join would turn it into a name to look up
			continue
		}
		all = append(all, filepath.Join(dir, name))
	}
	return all
}

// Exit is how one life of a command ended, and what it left behind. It is plain
// data: [Classify] reads nothing else.
type Exit struct {
	Code    int            `json:"code"`              // exit status; 128 + n if signal n ended it
	Signal  syscall.Signal `json:"signal,omitempty"`  // that ended it; 0 if it exited
	Stopped bool           `json:"stopped,omitempty"` // headroom or the user had asked it to stop
	Began   time.Time      `json:"began"`             // when it was started
	Seconds float64        `json:"seconds"`           // how long it lived
	Tail    []byte         `json:"-"`                 // the newest output of both streams as it came, in whole lines where they are not huge
	Ranks   []RankError    `json:"ranks,omitempty"`   // what a launcher's workers left in their error files
	Kernel  Kernel         `json:"kernel"`            // what the kernel counted meanwhile
	GPUs    []GPU          `json:"gpus,omitempty"`    // the GPUs that the command could use, as seen from outside
	Ulimit  memory.Bytes   `json:"ulimit,omitempty"`  // host memory that each of its processes may allocate; 0 if not limited
}

// RankError is what one worker of a launcher left in its error file, such as
// torchrun's error.json.
type RankError struct {
	Rank    int       `json:"rank"`
	Time    time.Time `json:"time"` // when it failed; the first one is the root
	Message string    `json:"message"`
}

// Kernel is how much the kernel's counters rose during the life of a command.
type Kernel struct {
	GroupKills  int64 `json:"group_kills"`  // oom_kill of the control group's memory.events
	SystemKills int64 `json:"system_kills"` // oom_kill of /proc/vmstat
}

// GPU is the memory of one GPU over the life of a command, sampled from outside. An
// amount that is not known is 0.
type GPU struct {
	Index   int          `json:"index"`
	Total   memory.Bytes `json:"total"`
	Peak    memory.Bytes `json:"peak"`    // the most that the command's processes held
	Foreign memory.Bytes `json:"foreign"` // what other processes held at the newest sample
	Before  memory.Bytes `json:"before"`  // what other processes held when the command was started
}

// String is the command as it is typed into a shell.
func (c Command) String() string { return runs.Shell(c.Args...) }
