package nodes

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"headroom/harness"
	"headroom/wrap/command"
	"headroom/wrap/exits"
)

// version is the number of this format. Nodes with different ones cannot work together.
const version = 1

// State is what a node says about itself: the content of its file.
type State struct {
	Version int    `json:"version"`
	Node    int    `json:"node"`
	Of      int    `json:"of"`
	Start   string `json:"start"`  // drawn at random by each start of headroom
	Host    string `json:"host"`   // for people
	PID     int    `json:"pid"`    // for people
	Trains  string `json:"trains"` // what the command trains, which must be the same on all nodes
	Beat    int64  `json:"beat"`   // how many times this start has written the file

	Attempt  int     `json:"attempt"`            // number of the newest attempt that this node has begun; 0 before the first
	Report   *Report `json:"report,omitempty"`   // how its part of that attempt ended; nil until then
	Stopping bool    `json:"stopping,omitempty"` // headroom was asked to stop
	Left     bool    `json:"left,omitempty"`     // headroom has ended

	Leader string `json:"leader,omitempty"` // the Start of the node 0 that this node follows; "" before it does, and for node 0

	// Only node 0 says these.
	Members []string `json:"members,omitempty"` // by node: the Start that counts; "" if none does yet
	Order   *Order   `json:"order,omitempty"`   // how the newest attempt begins
	Ends    *Ends    `json:"ends,omitempty"`    // why the newest attempt is to end on all nodes; nil if it is not
	Over    *Over    `json:"over,omitempty"`    // how the run has ended
}

// Order is how an attempt begins, on all nodes.
type Order struct {
	Attempt  int              `json:"attempt"` // as node 0 counts them, over all its processes
	Settings harness.Settings `json:"settings"`
	From     *Checkpoint      `json:"from,omitempty"` // nil means the beginning of the training
}

// Checkpoint is the one from which all nodes resume.
type Checkpoint struct {
	Path    string `json:"path"` // spelled as in the command
	Step    int    `json:"step"`
	Micro   int    `json:"micro"` // the micro-batch of the attempt that wrote it
	Problem string `json:"problem,omitempty"`
}

// Report is how one node's part of an attempt ended.
type Report struct {
	Outcome exits.Outcome `json:"outcome"`
	Exit    command.Exit  `json:"exit"`
	// Peer says that headroom ended the command because the attempt had ended on another node.
	Peer bool `json:"peer,omitempty"`
	// Error says why there was nothing to start; "" if the command was started.
	Error string `json:"error,omitempty"`
	// Order is the position of this report among those of the attempt, as node 0 saw them come; node 0 fills it in.
	Order int `json:"-"`
}

// How is a reason to end an attempt on all nodes.
type How string

// The reasons to end an attempt on all nodes.
const (
	Failed  How = "failed"  // it has ended on a node, and that node's training is not done
	Stopped How = "stopped" // headroom was asked to stop on a node
	Gone    How = "gone"    // a node is gone
)

// Ends says that an attempt is to end on all nodes.
type Ends struct {
	Attempt int    `json:"attempt"`
	How     How    `json:"how"`
	Why     string `json:"why"` // in words
}

// Over is how a run ended.
type Over struct {
	Done        bool   `json:"done,omitempty"`
	Interrupted bool   `json:"interrupted,omitempty"` // it can go on later
	Code        int    `json:"code,omitempty"`        // the exit status of node 0, if neither Done nor Interrupted
	Why         string `json:"why,omitempty"`
}

func file(dir string, node int) string {
	return filepath.Join(dir, fmt.Sprintf("node-%d.json", node))
}

// write replaces a node's file. It reaches the disk before the new name does, so that a server that
// loses power does not leave an empty file behind.
func write(dir string, s State) error {
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	beside := filepath.Join(dir, fmt.Sprintf(".node-%d.%s.tmp", s.Node, s.Start))
	f, err := os.OpenFile(beside, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(append(text, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(beside, file(dir, s.Node))
	}
	if err != nil {
		_ = os.Remove(beside)
	}
	return err
}

// read returns what a node has written; the zero State if it has written nothing yet.
func read(dir string, node int) (s State, err error) {
	text, err := os.ReadFile(file(dir, node))
	if errors.Is(err, fs.ErrNotExist) {
		return State{}, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	return s, err
}
