package notify

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"headroom/runs"
)

const (
	// SendMost is how long a receiver may take for one message.
	SendMost = 10 * time.Second
	// LastWait is how long the end of a run waits for the messages that are under way.
	LastWait = 5 * time.Second

	queued = 8 // messages that wait for one receiver at most; there is one of a kind in [Quiet]
	reaped = 2 * time.Second
)

// Options are what a [Notifier] is for.
type Options struct {
	Run    string
	Host   string
	Folder string
	To     []Receiver
	Since  Watch // what there has been before

	// Summary returns lines of the run's report as it is now. It may take a second; it is called beside the run, by one
	// goroutine. Nil if there is none.
	Summary func() []string
	// Failed is told, once for each receiver, that it could not be reached, and why. Several goroutines may call it at
	// once, and none does after Close.
	Failed func(to Receiver, err error)

	after func(time.Duration) <-chan time.Time // time.After, except in tests
}

// Notifier sends messages about one run. A nil Notifier sends none.
type Notifier struct {
	o      Options
	events chan Event
	ctx    context.Context
	cancel context.CancelFunc
	all    sync.WaitGroup
	silent atomic.Bool // Failed is not called any more

	mu    sync.Mutex // guards what follows
	watch Watch
	ended bool // events is closed
}

// Start returns a notifier of a run that begins or continues. The caller closes it. It returns nil if there is nobody to tell.
func Start(o Options) *Notifier {
	if len(o.To) == 0 {
		return nil
	}
	if o.after == nil {
		o.after = time.After
	}
	n := &Notifier{o: o, watch: o.Since, events: make(chan Event, queued)}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	n.all.Go(n.distribute)
	return n
}

// Entry sends a message about e if it is worth one. It never waits. After Close it does nothing.
func (n *Notifier) Entry(e runs.Entry) {
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ended {
		return
	}
	watch, kind, text := n.watch.Next(e)
	if n.watch = watch; kind == "" {
		return
	}
	select {
	case n.events <- Event{Kind: kind, Run: n.o.Run, Host: n.o.Host, Folder: n.o.Folder, Time: e.Time, Text: text}:
	default: // whoever draws the summaries is stuck: the run does not wait for it
	}
}

// distribute adds the summary to each event, and passes it to a goroutine for each receiver: a slow one holds up no other.
func (n *Notifier) distribute() {
	queues := make([]chan Event, len(n.o.To))
	for i, to := range n.o.To {
		queues[i] = make(chan Event, queued)
		n.all.Go(func() { n.send(to, queues[i]) })
		defer close(queues[i])
	}
	for e := range n.events {
		if n.o.Summary != nil {
			e.Summary = n.o.Summary()
		}
		for _, q := range queues {
			select {
			case q <- e:
			default: // this one is stuck
			}
		}
	}
}

func (n *Notifier) send(to Receiver, queue <-chan Event) {
	told := false
	for e := range queue {
		ctx, cancel := context.WithTimeout(n.ctx, SendMost)
		_, err := to.Send(ctx, e)
		cancel()
		if err != nil && !told && !n.silent.Load() {
			told = true
			n.o.Failed(to, err)
		}
	}
}

// Close waits until all messages are sent, but no longer than [LastWait]; what is then under way is given up. A second call does nothing.
func (n *Notifier) Close() {
	if n == nil || n.end() {
		return
	}
	sent := make(chan struct{})
	go func() { defer close(sent); n.all.Wait() }()
	select {
	case <-sent:
	case <-n.o.after(LastWait):
	}
	n.cancel()
	select {
	case <-sent:
	case <-n.o.after(reaped): // somebody reads a folder that does not answer
	}
	n.silent.Store(true)
}

// end ends the queue, and returns whether it had ended already.
func (n *Notifier) end() (already bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if already, n.ended = n.ended, true; !already {
		close(n.events)
	}
	return already
}
