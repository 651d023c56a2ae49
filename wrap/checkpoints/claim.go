package checkpoints

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"headroom/wrap/rewrite"
)

// Claim announces to other headroom processes on this machine where a run keeps its
// checkpoints, until it is closed or the process ends. Each process of the same user listens
// on one of a few Unix sockets with abstract names, so that no file is written, and tells its
// place to whoever connects.
type Claim struct {
	own      keeps
	match    *rewrite.Match
	mu       sync.Mutex // held while joined runs
	joined   func(who string)
	listener net.Listener
	stamped  chan struct{} // closed when own.Since is set
}

// claims is how many processes can make a claim at the same time. With more of them, the
// others go without.
const claims = 32

// claimWait is how long another process may take to answer; it may have been stopped. joinWait
// is how long it may take to note that this process comes.
const claimWait, joinWait = 300 * time.Millisecond, 10 * time.Second

// Announce claims the place of m's checkpoints for the run with the given name. The claim is nil
// if m has no checkpoints, if their place is not known, or if this system does not support
// claims. If a process that claimed its place earlier keeps its checkpoints in the same place,
// the error is a *[KeptElsewhereError]; the claim is then kept as well, since this run
// will write to that place, too.
//
// joined is called with a description of each run that comes later and will write its
// checkpoints to the same place. The other run starts its command only after joined has
// returned. Calls may come from any goroutine, one at a time.
func Announce(m *rewrite.Match, run string, joined func(who string)) (*Claim, error) {
	own, ok := claimed(m)
	if !ok {
		return nil, nil
	}
	own.PID, own.Run = os.Getpid(), run
	c := &Claim{own: own, match: m, joined: joined, stamped: make(chan struct{})}
	mine := -1
	for slot := range claims {
		if l, err := net.Listen("unix", claimName(slot)); err == nil {
			c.listener, mine = l, slot
			break
		}
	}
	c.own.Since = time.Now().UnixNano()
	close(c.stamped)
	if c.listener != nil {
		go c.serve()
	}
	for slot := range claims {
		if slot == mine {
			continue
		}
		if other, meets := c.ask(slot); meets && other.Since < c.own.Since {
			root, _ := rewrite.Root(m)
			return c, &KeptElsewhereError{root, other.who()}
		}
	}
	return c, nil
}

func claimName(slot int) string { return fmt.Sprintf("@headroom-claim-1-%d", slot) }

// Close ends the claim.
func (c *Claim) Close() error {
	if c == nil || c.listener == nil {
		return nil
	}
	err := c.listener.Close()
	c.mu.Lock()
	c.joined = nil // a call that has begun has ended; there will be no other
	c.mu.Unlock()
	return err
}

func (c *Claim) meets(other keeps) bool {
	return c.own.meet(other, func(keys []FileKey) bool { return hasOne(c.match, keys) })
}

// greeting is what a process says to another one.
type greeting struct {
	Keeps keeps
	Meets bool // it has found that the two places meet
}

// ask tells this claim to the process at a slot. It returns the claim of that process, and
// whether the two places meet, once that process has noted that they do.
func (c *Claim) ask(slot int) (other keeps, meets bool) {
	conn, err := net.DialTimeout("unix", claimName(slot), claimWait)
	if err != nil {
		return other, false // the usual case: there is no such process
	}
	defer func() { _ = conn.Close() }()
	say, hear := json.NewEncoder(conn), json.NewDecoder(conn)
	var reply greeting
	if !sameUser(conn) || conn.SetDeadline(time.Now().Add(claimWait)) != nil || say.Encode(greeting{Keeps: c.own}) != nil || hear.Decode(&reply) != nil {
		return other, false
	}
	meets = c.meets(reply.Keeps) || reply.Meets
	if conn.SetDeadline(time.Now().Add(joinWait)) == nil && say.Encode(greeting{Meets: meets}) == nil {
		_ = hear.Decode(&greeting{}) // the end, when the other process is ready
	}
	return reply.Keeps, meets
}

// serve answers the processes that come later.
func (c *Claim) serve() {
	for {
		conn, err := c.listener.Accept()
		if err != nil {
			return // closed
		}
		go c.answer(conn)
	}
}

func (c *Claim) answer(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	say, hear := json.NewEncoder(conn), json.NewDecoder(conn)
	var other, last greeting
	if !sameUser(conn) || conn.SetDeadline(time.Now().Add(joinWait)) != nil || hear.Decode(&other) != nil {
		return
	}
	<-c.stamped
	if say.Encode(greeting{c.own, c.meets(other.Keeps)}) != nil || hear.Decode(&last) != nil || !last.Meets || other.Keeps.Since < c.own.Since {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.joined != nil {
		c.joined(other.Keeps.who())
	}
}
