package nodes

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"headroom/harness"
	"headroom/wrap/exits"
)

// Options are what a [Member] needs to know.
type Options struct {
	Dir    string // the folder in which the nodes' files are, which exists; the same on all nodes
	Trains string // what the command trains, in words that are the same on all nodes
	Times  Times
	Say    func(format string, args ...any) // for what a person should know while nothing else happens
}

// Member is one headroom's part in a run of several nodes. From Join to Leave it writes its node's
// file and reads those of others: node 0 all of them, the others that of node 0. Any goroutine may call
// its methods.
type Member struct {
	o     Options
	place Place

	mu      sync.Mutex
	state   State
	written time.Time     // when state was last written
	others  []watched     // by node; on a node other than 0 only the first is used
	more    chan struct{} // closed and replaced whenever something has changed
	ends    *Ends         // the newest that this node has heard of
	since   time.Time     // when ends was heard of
	fatal   error         // why this node cannot take part
	foreign int           // how many times another process has written this node's file
	mute    bool          // that the file cannot be written has been said
	arrived []string      // reports that have come, as "attempt.node", in order

	quit, done chan struct{}
}

// watched is what is known about a node, and when that was last looked at.
type watched struct {
	seen Seen
	at   time.Time
}

// MisfitError says that the nodes cannot run one command together.
type MisfitError struct{ Why string }

func (e *MisfitError) Error() string { return e.Why }

// LostError says that a node is gone, or has not come. The run can be continued on all nodes: the error
// wraps [harness.ErrInterrupted].
type LostError struct {
	Why   string
	Never bool   // nothing has ever been heard of the node
	Dir   string // where its file should be
}

func (e *LostError) Error() string { return e.Why }
func (e *LostError) Unwrap() error { return harness.ErrInterrupted }

// OverError says that node 0 has ended the run for another reason than that all is done.
type OverError struct{ Over Over }

func (e *OverError) Error() string { return "node 0 has ended the run: " + e.Over.Why }

// Unwrap makes an interrupted run one for callers.
func (e *OverError) Unwrap() error {
	if e.Over.Interrupted {
		return harness.ErrInterrupted
	}
	return nil
}

// Join begins to take part. The caller calls [Member.Leave] when it has ended.
func Join(place Place, o Options) (*Member, error) {
	id := make([]byte, 8)
	_, _ = rand.Read(id) // never fails
	host, _ := os.Hostname()
	m := &Member{o: o, place: place, more: make(chan struct{}), quit: make(chan struct{}), done: make(chan struct{}), others: make([]watched, place.Of)}
	m.state = State{Version: version, Node: place.Node, Of: place.Of, Start: hex.EncodeToString(id), Host: host, PID: os.Getpid(), Trains: o.Trains}
	if place.Node == 0 {
		m.state.Members = make([]string, place.Of)
		m.state.Members[0] = m.state.Start
	}
	now := time.Now()
	for i := range m.others {
		m.others[i].at = now
	}
	m.state.Beat = 1
	if err := write(o.Dir, m.state); err != nil {
		return nil, fmt.Errorf("tell the other nodes: %w", err)
	}
	m.written = now
	go m.live()
	return m, nil
}

// Node returns which node this is.
func (m *Member) Node() int { return m.place.Node }

// live writes and reads until Leave.
func (m *Member) live() {
	defer close(m.done)
	tick := time.NewTicker(m.o.Times.Tick)
	defer tick.Stop()
	for {
		m.look()
		select {
		case <-m.quit:
			return
		case <-tick.C:
		}
	}
}

// look reads what others have written, and beats if it is time.
func (m *Member) look() {
	nodes := []int{0}
	if m.place.Node == 0 {
		nodes = nodes[:0]
		for n := 1; n < m.place.Of; n++ {
			nodes = append(nodes, n)
		}
	}
	said := make([]State, len(nodes)+1)
	failed := make([]error, len(nodes)+1)
	for i, n := range append(nodes, m.place.Node) { // not locked: a server may let readers wait
		said[i], failed[i] = read(m.o.Dir, n)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	for i, n := range nodes {
		if failed[i] == nil { // an error, such as a stale handle, is no news
			w := &m.others[n]
			w.seen, w.at = w.seen.see(said[i], now.Sub(w.at), m.o.Times.Tick), now
		}
	}
	m.usurped(said[len(nodes)])
	m.judge(now)
	if now.Sub(m.written) >= m.o.Times.Beat {
		m.say()
	}
	m.changed()
}

// usurped notices a second headroom that says that it is this node: what this one has written is gone
// again and again.
func (m *Member) usurped(mine State) {
	if mine.Start == "" || mine.Start == m.state.Start {
		return
	}
	if m.foreign++; !mine.Left && m.foreign > 2 {
		m.fatal = &MisfitError{fmt.Sprintf("another headroom says that it is node %d of %d, too: process %d on %s", mine.Node, mine.Of, mine.PID, mine.Host)}
	}
	m.say()
}

// judge draws the conclusions from what is known.
func (m *Member) judge(now time.Time) {
	if m.place.Node == 0 {
		m.judgeAll()
	} else {
		m.judgeLeader()
	}
	if m.state.Over == nil && m.ends != nil && m.since.IsZero() {
		m.since = now
	}
}

// judgeAll is judge for node 0.
func (m *Member) judgeAll() {
	all := m.all()
	for n := range all[1:] {
		s := &m.others[n+1].seen
		if why := misfit(m.state, s.State); s.State.Start != "" && s.Lives && s.Member == "" && why != "" {
			m.fatal = &MisfitError{why}
		}
		if s.Member == "" && s.State.Leader == m.state.Start {
			s.Member = s.State.Start
		}
		if r := all[n+1].report(m.state.Attempt); r != nil {
			m.arrival(n + 1)
		}
	}
	if next := members(m.state, all); !slices.Equal(next, m.state.Members) {
		m.state.Members = next
		m.say()
	}
	if e := ending(m.state.Attempt, m.all(), m.o.Times); e != nil && (m.ends == nil || m.ends.Attempt != e.Attempt || m.ends.How == Failed && e.How != Failed) {
		m.ends, m.since = e, time.Time{}
		m.state.Ends = e
		m.say()
	}
}

// arrival records that the report of a node about the newest attempt has come.
func (m *Member) arrival(node int) int {
	key := fmt.Sprintf("%d.%d", m.state.Attempt, node)
	if i := slices.Index(m.arrived, key); i >= 0 {
		return i
	}
	m.arrived = append(m.arrived, key)
	return len(m.arrived) - 1
}

// judgeLeader is judge for the other nodes.
func (m *Member) judgeLeader() {
	s := &m.others[0].seen
	if why := misfit(m.state, s.State); s.State.Start != "" && s.Lives && s.Member == "" && why != "" {
		m.fatal = &MisfitError{why}
	}
	if s.Member == "" && m.counted(s.State) {
		s.Member = s.State.Start
		m.state.Leader = s.State.Start
		m.say()
	}
	next := s.ordered(m.state.Attempt, m.o.Times)
	if next != nil && next.Attempt == m.state.Attempt && (m.ends == nil || *m.ends != *next) {
		m.ends, m.since = next, time.Time{}
	}
}

// counted reports whether node 0 counts this node.
func (m *Member) counted(leader State) bool {
	return m.place.Node < len(leader.Members) && leader.Members[m.place.Node] == m.state.Start
}

// all returns what node 0 knows of every node, itself included. The caller holds m.mu.
func (m *Member) all() []Seen {
	all := make([]Seen, m.place.Of)
	for i := range all {
		all[i] = m.others[i].seen
	}
	all[m.place.Node] = Seen{State: m.state, Member: m.state.Start, Lives: true}
	return all
}

// say writes this node's file. The caller holds m.mu.
func (m *Member) say() {
	m.state.Beat++
	m.written = time.Now()
	err := write(m.o.Dir, m.state)
	if err != nil && !m.mute {
		m.o.Say("the other nodes cannot be told: %v", err)
	}
	m.mute = err != nil
}

// changed wakes whoever waits. The caller holds m.mu.
func (m *Member) changed() {
	close(m.more)
	m.more = make(chan struct{})
}

// tell changes what this node says.
func (m *Member) tell(change func(*State)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(&m.state)
	m.judge(time.Now())
	m.say()
	m.changed()
}

// until waits until ready, which is called with m.mu held, returns true or an error, or ctx is done.
func (m *Member) until(ctx context.Context, ready func() (bool, error)) error {
	for {
		m.mu.Lock()
		ok, err := ready()
		more := m.more
		if m.fatal != nil {
			err = m.fatal
		}
		m.mu.Unlock()
		if ok || err != nil {
			return err
		}
		select {
		case <-more:
		case <-ctx.Done():
			return fmt.Errorf("stopped while waiting for other nodes: %w", harness.ErrInterrupted)
		}
	}
}

// Stops makes this node say that it was asked to stop, once ctx is done.
func (m *Member) Stops(ctx context.Context) (release func() bool) {
	return context.AfterFunc(ctx, func() { m.tell(func(s *State) { s.Stopping = true }) })
}

// Lead says, as node 0, how the next attempt begins, and waits until every other node is there to begin it.
func (m *Member) Lead(ctx context.Context, o Order) error {
	m.tell(func(s *State) { s.Order, s.Attempt, s.Report, s.Ends = &o, o.Attempt, nil, nil; m.ends = nil })
	defer m.patient()()
	return m.until(ctx, func() (bool, error) {
		if m.ends != nil {
			return false, m.lost(*m.ends)
		}
		return m.absent() == "", nil
	})
}

// absent names the nodes that have not begun the newest attempt; "" if all have. The caller holds m.mu.
func (m *Member) absent() string {
	var names []string
	if m.place.Node != 0 {
		return "node 0"
	}
	for n, s := range m.all() {
		if !s.began(m.state.Attempt) {
			names = append(names, fmt.Sprint(n))
		}
	}
	switch len(names) {
	case 0:
		return ""
	case 1:
		return "node " + names[0]
	}
	return "nodes " + strings.Join(names, ", ")
}

// patient says whom this node waits for, if that takes longer than a quarter of the time after which a
// node is gone, until stop is called.
func (m *Member) patient() (stop func() bool) {
	return time.AfterFunc(m.o.Times.Gone/4, func() {
		m.mu.Lock()
		who := m.absent()
		m.mu.Unlock()
		if who != "" {
			m.o.Say("waiting for %s: all nodes need the same run folder, on storage that they share; this is %s", who, m.o.Dir)
		}
	}).Stop
}

// lost returns the error for the end of an attempt for a reason that node 0 does not decide about.
func (m *Member) lost(e Ends) error {
	switch e.How {
	case Gone:
		never := m.state.Leader == ""
		if m.place.Node == 0 {
			never = slices.ContainsFunc(m.all(), func(s Seen) bool { return s.Member == "" })
		}
		return &LostError{Why: e.Why, Never: never, Dir: m.o.Dir}
	case Stopped:
		return fmt.Errorf("%s: %w", e.Why, harness.ErrInterrupted)
	}
	return nil
}

// Follow waits, as a node other than 0, for the next order, and begins it. The error is an *[OverError] if
// the run has ended unfinished; o is nil if it has ended well.
func (m *Member) Follow(ctx context.Context) (o *Order, err error) {
	stop := func() bool { return false }
	m.mu.Lock()
	if m.state.Attempt == 0 {
		stop = m.patient()
	}
	m.mu.Unlock()
	defer stop()
	err = m.until(ctx, func() (bool, error) {
		leader := m.others[0].seen
		if why := leader.missing(0, m.o.Times); why != "" {
			return false, &LostError{Why: why, Never: leader.Member == "", Dir: m.o.Dir}
		}
		if leader.Member == "" {
			return false, nil
		}
		if over := leader.State.Over; over != nil {
			if !over.Done {
				return false, &OverError{*over}
			}
			return true, nil
		}
		if next := leader.State.Order; next != nil && next.Attempt > m.state.Attempt {
			o = next
			m.state.Attempt, m.state.Report, m.ends, m.since = next.Attempt, nil, nil, time.Time{}
			m.say()
			return true, nil
		}
		return false, nil
	})
	return o, err
}

// Report says how this node's part of the newest attempt ended.
func (m *Member) Report(r Report) {
	m.tell(func(s *State) {
		s.Report = &r
		if m.place.Node == 0 {
			m.arrival(0)
		}
	})
}

// Gather waits, as node 0, until every node has said how its part of the newest attempt ended, and returns what they have
// said, by node. A node that is gone is a *[LostError].
func (m *Member) Gather() (all []Report, err error) {
	err = m.until(context.Background(), func() (bool, error) {
		if m.ends != nil && m.ends.How == Gone {
			return false, m.lost(*m.ends)
		}
		all = nil
		for n, s := range m.all() {
			r := s.report(m.state.Attempt)
			if r == nil && s.missing(n, m.o.Times) != "" {
				return false, &LostError{Why: s.missing(n, m.o.Times), Dir: m.o.Dir}
			}
			if r == nil && s.State.Left && s.State.Stopping { // it had nothing to stop
				r = &Report{Outcome: exits.Outcome{Kind: exits.Stopped, Rank: -1, Device: -1}}
			}
			if r == nil {
				return false, nil
			}
			one := *r
			one.Order = m.arrival(n)
			all = append(all, one)
		}
		return true, nil
	})
	return all, err
}

// Host returns a node's name for people.
func (m *Member) Host(node int) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.all()[node].State.name()
}

// Ending waits until this node's part of the newest attempt has to end because of another node, and returns why.
// After a failure or a request to stop, that is some time later than it is heard of: until then the command may
// end by itself, which tells more. It returns nil if ctx is done first.
func (m *Member) Ending(ctx context.Context) *Ends {
	var ends *Ends
	err := m.until(ctx, func() (bool, error) {
		if m.ends == nil || m.ends.How == Stopped && m.state.Stopping {
			return false, nil
		}
		if time.Since(m.since) < m.o.Times.grace(m.ends.How) {
			return false, nil
		}
		ends = m.ends
		return true, nil
	})
	if err != nil && !errors.Is(err, harness.ErrInterrupted) { // it cannot take part
		ends = &Ends{How: Gone, Why: err.Error()}
	}
	return ends
}

// Fatal returns why this node cannot take part; nil if it can.
func (m *Member) Fatal() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.fatal
}

// Leave ends this node's part. over is how the run has ended; the zero Over on a node other than 0.
func (m *Member) Leave(over Over) {
	close(m.quit)
	<-m.done
	m.tell(func(s *State) {
		s.Left = true
		if m.place.Node == 0 {
			s.Over = &over
		}
	})
}
