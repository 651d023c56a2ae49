package ui

import (
	"errors"
	"os"
	"strings"
	"sync"
)

// messageMost is the size of a termination message: Kubernetes keeps the last 4096 bytes of one.
const messageMost = 4096

// newest is the newest lines that were printed, together no larger than messageMost. Several goroutines may use it at
// once.
type newest struct {
	mu   sync.Mutex
	text string
}

func (n *newest) add(line string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.text += line + "\n"
	for len(n.text) > messageMost {
		cut := len(n.text) - messageMost // of a line that is too large by itself, the end
		if next := strings.Index(n.text, "\n") + 1; next < len(n.text) {
			cut = next
		}
		n.text = n.text[cut:]
	}
}

// LeaveMessage adds the newest lines that were printed, those about the end with err included, to the file u.Message: what
// an engine shows of a job that has ended. An end of which nothing was printed leaves its error, or nothing if there is none.
func (u *UI) LeaveMessage(err error) {
	u.newest.mu.Lock()
	text := u.newest.text
	u.newest.mu.Unlock()
	if text == "" && err != nil {
		text = Printable(err.Error()) + "\n"
	}
	if text == "" {
		return
	}
	// The command may have left a message of its own.
	f, failed := os.OpenFile(u.Message, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if failed == nil {
		_, failed = f.WriteString(text)
		failed = errors.Join(failed, f.Close())
	}
	if failed != nil {
		u.noMessage(failed)
	}
}
