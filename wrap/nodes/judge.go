package nodes

import (
	"fmt"
	"slices"
	"time"

	"headroom/wrap/exits"
)

// Times are how long nodes wait for each other.
type Times struct {
	Gone  time.Duration // silence after which a node counts as gone
	Join  time.Duration // how long a node may take to come, from the start of the one that waits
	Beat  time.Duration // between two signs of life
	Tick  time.Duration // between two looks at the files of others
	Grace time.Duration // how long a command may take to end by itself after it has ended on another node
}

// TimesFor returns times that follow from how long a silent node is waited for. With two minutes, a
// client of NFS may keep what it knows of a folder for its usual minute, and no node is taken for gone.
func TimesFor(gone time.Duration) Times {
	return Times{Gone: gone, Join: 5 * gone, Beat: gone / 24, Tick: gone / 120, Grace: gone / 12}
}

// grace returns how long a command may go on after it is known that the attempt is to end for a reason. A request to
// stop usually comes on all nodes at once: then each command gets its own signal, and no second one. If it came on one node alone, ranks that
// save together should get it soon.
func (t Times) grace(how How) time.Duration {
	switch how {
	case Failed:
		return t.Grace
	case Stopped:
		return 2 * t.Tick
	}
	return 0
}

// DefaultGone is how long a silent node is waited for unless the user says otherwise.
const DefaultGone = 2 * time.Minute

// Seen is what one node knows about another at one moment.
type Seen struct {
	State  State         // the newest that it has said; zero if it has said nothing
	Member string        // the Start that takes part in this run; "" as long as none does
	Silent time.Duration // since State was last seen to change, or since the watching began
	Lives  bool          // State has been seen to change, so a process writes it now
}

// see returns what is known about a node after its file has been read once more, elapsed after the time before. Only so much of
// elapsed counts as silence as two looks are usually apart: while the storage, or this machine, stands
// still, nobody can be heard.
func (s Seen) see(said State, elapsed, tick time.Duration) Seen {
	if said.Start == s.State.Start && said.Beat == s.State.Beat {
		s.Silent += min(elapsed, 2*tick)
		return s
	}
	s.Lives = s.Lives || s.State.Start != "" || s.Silent > 0
	s.State, s.Silent = said, 0
	return s
}

// name returns a node's name for people.
func (s State) name() string {
	if s.Host == "" {
		return fmt.Sprintf("node %d", s.Node)
	}
	return fmt.Sprintf("node %d (%s)", s.Node, s.Host)
}

// missing says why a node counts as gone, or returns "" if it does not. A node that takes no part
// yet may take t.Join.
func (s Seen) missing(node int, t Times) string {
	switch {
	case s.Member == "" && s.Silent >= t.Join:
		return fmt.Sprintf("node %d has not come within %v", node, t.Join)
	case s.Member == "":
		return ""
	case s.State.Start != s.Member:
		return s.State.name() + " has been started again by itself"
	case s.State.Left && s.State.Over == nil && !s.State.Stopping && (s.State.Report == nil || s.State.Report.Error == ""):
		return "headroom has ended on " + s.State.name()
	case !s.State.Left && s.Silent >= t.Gone:
		return fmt.Sprintf("%s has not been heard of for %v", s.State.name(), t.Gone)
	}
	return ""
}

// misfit says why two nodes cannot run one command together, or returns "" if they can.
func misfit(me, other State) string {
	switch {
	case me.Version != other.Version:
		return fmt.Sprintf("%s has another version of headroom: install the same one on all nodes", other.name())
	case me.Of != other.Of:
		return fmt.Sprintf("this is node %d of %d, but %s is one of %d", me.Node, me.Of, other.name(), other.Of)
	case me.Trains != other.Trains:
		return fmt.Sprintf("node %d trains with %s, but %s with %s: give all nodes the same command", me.Node, me.Trains, other.name(), other.Trains)
	}
	return ""
}

// ending is node 0's decision whether an attempt is to end on all nodes: nil as long as it is not. all has
// what it knows of each node, itself included.
//
// A request to stop comes first: what follows from it on other nodes is no failure. A node that is gone
// comes before a failure, which is probably another node's loss of it.
func ending(attempt int, all []Seen, t Times) *Ends {
	for _, s := range all {
		if s.State.Stopping && (s.State.Start == s.Member) {
			return &Ends{attempt, Stopped, s.State.name() + " was asked to stop"}
		}
	}
	for node, s := range all[1:] {
		if why := s.missing(node+1, t); why != "" {
			return &Ends{attempt, Gone, why}
		}
	}
	for _, s := range all {
		if r := s.report(attempt); r != nil && (r.Outcome.Kind != exits.Done || r.Error != "") {
			return &Ends{attempt, Failed, "the command has ended on " + s.State.name()}
		}
	}
	return nil
}

// ordered returns why an attempt is to end on another node than node 0, which s is about; nil if it is not.
func (s Seen) ordered(attempt int, t Times) *Ends {
	why := s.missing(0, t)
	switch {
	case s.Member == "":
		return nil
	case s.State.Start == s.Member && s.State.Over != nil && s.State.Over.Interrupted:
		return &Ends{attempt, Stopped, "node 0 has ended the run"}
	case s.State.Start == s.Member && s.State.Over != nil:
		return &Ends{attempt, Failed, "node 0 has ended the run"}
	case why != "":
		return &Ends{attempt, Gone, why}
	}
	return s.State.Ends
}

// report returns how a node's part of an attempt ended; nil if it has not, as far as is known.
func (s Seen) report(attempt int) *Report {
	if s.Member == "" || s.State.Start != s.Member || s.State.Attempt != attempt {
		return nil
	}
	return s.State.Report
}

// began reports whether a node takes part in an attempt.
func (s Seen) began(attempt int) bool {
	return s.Member != "" && s.State.Start == s.Member && s.State.Attempt == attempt
}

// severity orders the ends of the parts of one attempt: the greatest is the one that counts. What headroom
// ended says nothing; a lost connection, which is among the failures, says less than a lack of memory,
// a lost device or a hang, which it may follow from.
func severity(r Report) int {
	switch o := r.Outcome; {
	case r.Error != "":
		return 9
	case o.Kind == exits.Stopped:
		return 8
	case r.Peer:
		return 1
	case o.OutOfMemory():
		return 7
	case o.Kind == exits.DeviceGone:
		return 6
	case o.Kind == exits.Leaking:
		return 5
	case o.Kind == exits.Hung:
		return 4
	case o.Kind.Memory():
		return 3
	case o.Kind == exits.Failed:
		return 2
	}
	return 0 // done
}

// Counts returns the node whose report decides about an attempt: the most severe, and of several the one that came
// first.
func Counts(all []Report) int {
	most := 0
	for node, r := range all {
		if s, m := severity(r), severity(all[most]); s > m || s == m && r.Order < all[most].Order {
			most = node
		}
	}
	return most
}

// members returns whom node 0 counts after it has seen all: the newest process of each node that fits, and
// never another one after the first has taken part.
func members(me State, all []Seen) []string {
	next := slices.Clone(me.Members)
	for node, s := range all {
		if s.Member == "" && s.State.Start != "" && misfit(me, s.State) == "" {
			next[node] = s.State.Start
		}
	}
	return next
}
