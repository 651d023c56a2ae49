package command

import (
	"syscall"
	"time"

	"headroom/memory"
)

// Exit describes how one attempt of a command ended, and holds the evidence that it left
// behind. It is plain data. Package exits reads nothing else.
type Exit struct {
	Code    int            `json:"code"`              // exit status; 128 + n if signal n ended it
	Signal  syscall.Signal `json:"signal,omitempty"`  // signal that ended it; 0 if it exited by itself
	Stopped bool           `json:"stopped,omitempty"` // headroom or the user had asked it to stop
	Began   time.Time      `json:"began"`             // when it was started
	Seconds float64        `json:"seconds"`           // how long it lived
	Tail    []byte         `json:"-"`                 // the newest output of stdout and stderr, in the order in which it came; its lines are whole unless they are huge
	Ranks   []RankError    `json:"ranks,omitempty"`   // what a launcher's workers left in their error files
	Kernel  Kernel         `json:"kernel"`            // what the kernel counted during this attempt
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

// Kernel is how much the kernel's counts of OOM kills rose during one attempt of a command.
type Kernel struct {
	GroupKills  int64 `json:"group_kills"`  // oom_kill in memory.events of the command's control group
	SystemKills int64 `json:"system_kills"` // oom_kill in /proc/vmstat
}

// GPU is the memory of one GPU during one attempt of a command, sampled from outside the
// command. An amount that is not known is 0.
type GPU struct {
	Index   int          `json:"index"`
	Total   memory.Bytes `json:"total"`
	Peak    memory.Bytes `json:"peak"`    // the most that the command's processes held together
	Foreign memory.Bytes `json:"foreign"` // what other processes held at the newest sample
	Before  memory.Bytes `json:"before"`  // what other processes held when the command was started
}
