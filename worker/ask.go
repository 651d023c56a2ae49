package worker

import (
	"encoding/json"
	"fmt"
	"net"
	"time"
)

// asked answers a program that has asked for an account of memory: another headroom, which is no
// process of the command.
type asked struct {
	Processes int `json:"processes"` // that were asked
}

// ask asks all processes that have said hello what their memory is held for, and returns how many
// those are. Each answers after its current step, in the journal.
func (a *Attempt) ask() int {
	a.mu.Lock()
	var all []*talk
	for t := range a.talks {
		if t.met {
			all = append(all, t)
		}
	}
	a.mu.Unlock()
	for _, t := range all {
		t.say(answer{Type: "account"})
	}
	return len(all)
}

// Ask asks the processes of an attempt what their memory is held for, and returns how many were
// asked: those that have trained. socket is [Attempt.Socket], as the run's status has it. The
// answers go into the run's journal, each as soon as the process has ended its current step.
func Ask(socket string) (processes int, err error) {
	conn, err := net.DialTimeout("unix", socket, hearing)
	if err != nil {
		return 0, fmt.Errorf("ask for an account of memory: %w", err)
	}
	defer conn.Close() //nolint:errcheck // everything has been read
	err = conn.SetDeadline(time.Now().Add(hearing))
	if err == nil {
		_, err = conn.Write([]byte(`{"type":"ask"}` + "\n"))
	}
	var a asked
	if err == nil {
		err = json.NewDecoder(conn).Decode(&a)
	}
	if err != nil {
		return 0, fmt.Errorf("ask for an account of memory: %w", err)
	}
	return a.Processes, nil
}
