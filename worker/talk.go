package worker

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"headroom/harness"
	"headroom/memory"
	"headroom/recovery"
	"headroom/runs"
)

const (
	// notesMost is the largest number of journal entries that the processes of
	// an attempt may cause.
	notesMost = 1000
	// hearing is the time that headroom waits for a process to read an answer.
	hearing = 5 * time.Second
)

// talk is the connection to one process. It must be used by one goroutine only.
type talk struct {
	attempt *Attempt
	conn    *net.UnixConn
	lines   *bufio.Scanner
	pid     int
	rank    int
	world   int
	trains  string           // what its launcher calls what it trains, "" if that is not known
	met     bool             // it has said hello
	since   time.Time        // when it said so
	seen    harness.Evidence // what its steps have needed
	cuts    map[int]int      // rows of a batch → pieces in which it was last run
	trend   trend
	pace    pace
	last    runs.ProcessStep  // the newest step that the process reported
	made    int               // optimizer steps that the process has finished, as far as it has said so
	newest  *runs.ProcessStep // the newest step, or nil if it has been recorded
	ends    time.Time         // when the machine's memory runs out, as the process has said; zero if it has not
	out     time.Time         // when memory runs out; zero if it does not; guarded by attempt.mu
	grown   string            // what grows, and how fast
	holder  *memory.Holder    // what holds memory that grows; nil if that is not known
	trials  *Trials           // nil until the process can make trials
	going   bool              // the process went on running at the end of the attempt

	pending []told // failures in the current step of which nothing further is known
	refused *told  // the newest failure that was left to the command's own code; nil after a finished step
}

// told is a reported failure and its cause.
type told struct {
	message
	failure memory.OutOfMemoryError
	verdict memory.Verdict
	when    time.Time // when it was reported
}

// uncounted returns f without the number of rows, which its verdict also names.
func (f told) uncounted() told {
	f.failure.Micro = 0
	if f.verdict.Cause == memory.Batch || f.verdict.Cause == memory.Model {
		needed := measurable(f.failure)
		f.verdict.Why = "the call needs " + needed.Shortage()
	}
	return f
}

// measurable returns f with numbers by which its cause can be judged: a failure of the
// CPU's allocator has only the size of the request.
func measurable(f memory.OutOfMemoryError) memory.OutOfMemoryError {
	if f.Stats.Capacity <= 0 {
		return f.Assume(0)
	}
	return f
}

// listen reads and handles the messages of the process until there are no more.
func (t *talk) listen() {
	defer t.end()
	t.lines = bufio.NewScanner(t.conn)
	t.lines.Buffer(make([]byte, 0, 4096), lineMost)
	for {
		m, err := t.next()
		if err == nil {
			err = t.take(m)
		}
		if err != nil {
			t.going = errors.Is(err, os.ErrDeadlineExceeded)
			return
		}
	}
}

// errSilent reports that a process sends no further messages.
var errSilent = errors.New("the process sends no further messages")

// next returns the next message; it skips lines that are not messages.
func (t *talk) next() (message, error) {
	for t.lines.Scan() {
		m, err := parse(t.lines.Bytes())
		if err == nil {
			return m, nil
		}
		t.once("lines", fmt.Sprintf("process %d sends lines that cannot be read", t.pid))
	}
	return message{}, cmp.Or(t.lines.Err(), errSilent)
}

// end closes the connection. If the newest failure has not been settled, end keeps that
// failure for [Ended], because the process may have died of it.
func (t *talk) end() {
	_ = t.conn.Close() // the process is gone and cannot receive an error
	t.attempt.mu.Lock()
	defer t.attempt.mu.Unlock()
	delete(t.attempt.talks, t)
	if t.trials != nil {
		close(t.trials.outcomes)
	}
	t.write()
	if t.going && t.last.Made > 0 {
		t.attempt.ended.Training = append(t.attempt.ended.Training, t.pid)
	}
	last := t.refused
	if last == nil && len(t.pending) > 0 {
		last = &t.pending[len(t.pending)-1]
	}
	if t.holder != nil && (last != nil || t.attempt.ended.Holder == nil) {
		h := t.holder.At(t.made)
		t.attempt.ended.Holder = &h
	}
	if last != nil && !t.follows(*last) {
		t.attempt.failed = last.when
		t.attempt.ended.OOM, t.attempt.ended.Where, t.attempt.ended.Why = &last.failure, last.Where, last.Why
		t.attempt.ended.Hint = last.Hint
		t.attempt.ended.Boundary, t.attempt.ended.Every = t.trend.newest(memory.LeakWindow)
	}
}

// follows reports whether another rank of the same training has failed before f: then it is
// that rank's failure that ended the training. Must be called with attempt.mu held.
func (t *talk) follows(f told) bool {
	first := t.attempt.failed
	return t.world > 1 && t.attempt.ended.OOM != nil && t.since.Before(first) && first.Before(f.when)
}

// take handles a message. An error ends the connection.
func (t *talk) take(m message) error {
	if !t.met && m.Type != "hello" && m.Type != "ask" && m.Type != "bye" {
		return nil // the process has not said hello yet
	}
	t.made = max(t.made, m.finished())
	switch m.Type {
	case "hello":
		return t.hello(m)
	case "step":
		t.step(m)
	case "oom":
		t.pending = append(t.pending, t.judged(m))
	case "survived":
		if len(t.pending) == 0 { // its beginning was not reported
			t.pending = []told{{message: m, failure: m.failure()}}
		}
		t.settle(runs.InPlace{Way: m.Way, Rows: m.Rows, Pieces: m.Pieces, Why: m.Why}, m.Rows, m.Ago)
	case "refused":
		t.refusal(told{message: m, failure: m.failure(), when: time.Now()})
		t.say(answer{Type: "heard", ID: m.ID})
	case "note":
		t.note(m)
	case "holds":
		t.holds(m)
	case "memory":
		t.memory(m)
		t.say(answer{Type: "heard", ID: m.ID})
	case "ask":
		t.say(asked{t.attempt.ask()})
	case "check":
		t.attempt.check(m.Found, "")
	case "tracks":
		t.attempt.tracks(m.Tracker, m.Run)
	case "ready":
		t.ready(m)
	case "tried", "cannot":
		t.outcome(m)
	case "bye":
		t.bye(m)
		return errSilent
	}
	return nil
}

// say sends an answer. An error does not end the connection: a process that no longer
// listens may have sent messages that have not been read yet.
func (t *talk) say(a any) {
	line, err := json.Marshal(a)
	if err == nil {
		err = t.conn.SetWriteDeadline(time.Now().Add(hearing))
	}
	if err == nil {
		_, _ = t.conn.Write(append(line, '\n'))
	}
}

func (t *talk) hello(m message) error {
	if m.V != protocol {
		t.once("protocol", fmt.Sprintf("process %d has headroom %s, which uses another version of the protocol: the process is left alone", t.pid, m.Headroom))
		return errSilent
	}
	a := t.attempt
	a.mu.Lock()
	if !t.met {
		t.met, t.since, t.seen = true, time.Now(), harness.NewEvidence(memory.Stats{})
	}
	t.rank, t.world, t.trains = m.Rank, max(1, m.World), m.Training
	first := !a.ended.Attached
	a.ended.Attached = true
	if first {
		who := runs.Attached{Python: m.Python, PID: t.pid, Torch: m.Torch, Mode: string(a.o.Mode), Rank: m.Rank, World: m.World, Watches: m.Why}
		a.o.Journal.Note(runs.Entry{Kind: runs.KindWorker, Attached: &who}.Told())
	}
	a.mu.Unlock()
	if m.Why != "" && a.o.Mode == Armed && t.world == 1 {
		t.noted("watches", runs.Entry{Kind: runs.KindWarning, Text: "out-of-memory failures cannot be survived inside this command: " + m.Why})
	}
	if m.Why != "" && (a.o.Mode == Check || a.o.Mode == Find) {
		a.check(nil, m.Why)
	}
	t.say(answer{Type: "plan", V: protocol, Mode: a.o.Mode, Limit: a.known(t.trains), Micro: a.o.Micro, Found: a.o.Found})
	return nil
}

// step records a finished optimizer step, and records that the pending failures were
// survived.
func (t *talk) step(m message) {
	t.settle(runs.InPlace{}, m.Rows, 0)
	t.refused = nil
	t.cut(m.Rows, m.Pieces)
	now := time.Now()
	seconds, due := t.pace.due(now, m.Step)
	made := runs.ProcessStep{Time: now, PID: t.pid, Made: m.Step, Rows: m.Rows, Pieces: m.Pieces, Seconds: seconds, Memory: m.stats(), Forward: m.Forward, Backward: m.Backward, Host: m.Spilled, Lost: m.Lost}
	if t.world > 1 {
		made.Rank, made.World = t.rank, t.world
	}
	t.last = made
	if t.newest = &made; due {
		t.write()
	}
	t.grows(m, now)
	t.seen.Add(ran(m.Rows, m.Pieces), m.stats())
	if m.Limit != nil {
		t.attempt.o.Journal.KeepPieces(t.attempt.smallest(t.trains, t.rank, t.world, *m.Limit))
	}
}

// smallest returns how many rows each process of a training can run at once, 0 for all of them, now that one
// of its ranks can run this many. A process that trains alone decides by itself.
func (a *Attempt) smallest(training string, rank, world, rows int) int {
	if world == 1 && training == "" {
		return rows
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.limits[training] == nil {
		a.limits[training] = map[int]int{}
	}
	a.limits[training][rank] = rows
	return least(a.limits[training])
}

// known returns how many rows a process runs at once from its start, 0 for all of them: as many as the processes before it
// settled on, if its launcher has started this training again, and otherwise as many as earlier attempts did. What other processes
// of this attempt have settled on does not count, because this one may train something else.
func (a *Attempt) known(training string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	if limits := a.limits[training]; training != "" && len(limits) > 0 {
		return least(limits)
	}
	return a.limit
}

// least returns the smallest of how many rows each rank can run at once; 0 is more than any other.
func least(limits map[int]int) (rows int) {
	for _, other := range limits {
		if rows == 0 || other != 0 && other < rows {
			rows = other
		}
	}
	return rows
}

// ran is a batch that was run in pieces, as a plan.
func ran(rows, pieces int) recovery.Plan {
	return recovery.Plan{Effective: rows, World: 1, Micro: (rows + max(1, pieces) - 1) / max(1, pieces)}
}

// bye records the last step that the process completed, unless the process has already reported it.
// It assumes that the memory has not changed since the last reported step.
func (t *talk) bye(m message) {
	if t.last.Made == 0 || m.Step <= t.last.Made {
		return
	}
	made := t.last
	made.Time, made.Made = time.Now().Add(-time.Duration(m.Seconds*float64(time.Second))), m.Step
	made.Seconds, _ = t.pace.due(made.Time, m.Step)
	t.newest = &made
}

// write records the newest step, unless it has been recorded.
func (t *talk) write() {
	if t.newest != nil {
		t.attempt.o.Journal.Stepped(*t.newest)
		t.newest = nil
	}
}

// cut notes in how many pieces a batch was run, if that number has changed
// since the last batch with as many rows.
func (t *talk) cut(rows, pieces int) {
	before := max(1, t.cuts[rows])
	if rows <= 0 || pieces <= 0 || pieces == before || len(t.cuts) > notesMost {
		return
	}
	t.cuts[rows] = pieces
	text := fmt.Sprintf("a batch of %d rows runs in %d pieces of at most %d", rows, pieces, (rows+pieces-1)/pieces)
	if pieces == 1 {
		text = fmt.Sprintf("a batch of %d rows runs in one piece again", rows)
	}
	t.noted(text, runs.Entry{Kind: runs.KindWorker, Text: text})
}

// grows reports when memory will run out if the memory held between steps keeps growing.
// With the first report, it asks the process to find out what grows.
func (t *talk) grows(m message, now time.Time) {
	t.trend.add(point{m.Step, now, m.Allocated})
	f, ok := t.trend.forecast(m.stats())
	t.attempt.mu.Lock()
	t.out, t.grown = t.ends, ""
	if ok {
		t.out, t.grown = now.Add(f.left), fmt.Sprintf("memory held between steps grows by %v per step", f.perStep)
	}
	if t.holder != nil && !t.out.IsZero() {
		t.grown = t.holder.Facts()
	}
	t.attempt.mu.Unlock()
	if !ok {
		return
	}
	tell, first := t.trend.news(f)
	if !tell {
		return
	}
	t.noted(f.String(), runs.Entry{Kind: runs.KindWarning, Text: f.String(), Leaks: true})
	if first {
		t.say(answer{Type: "look"})
	}
}

// settle records that the pending failures were survived, by what means, and how much time had
// passed since the first of them when they were, ago seconds before now. rows is the number of rows of the batch, or 0 if the process does
// not know it. If the process gave another number with the failure, that is the size of some other
// dimension, and is not shown.
func (t *talk) settle(how runs.InPlace, rows int, ago float64) {
	if len(t.pending) == 0 {
		return
	}
	t.attempt.mu.Lock()
	defer t.attempt.mu.Unlock()
	t.attempt.ended.Survived++
	for i, f := range t.pending {
		if how.Way != "" && rows != f.Rows {
			f = f.uncounted()
		}
		e := runs.Entry{Kind: runs.KindSurvived, OOM: &f.failure, InPlace: &how, Where: f.Where, Repeated: i > 0, InStep: f.Step}
		if f.verdict.Cause != "" {
			e.Verdict = &f.verdict
		}
		if i == 0 && !f.when.IsZero() {
			e.Seconds = max(0, time.Since(f.when).Seconds()-ago)
		}
		t.attempt.o.Journal.Survived(e.Told())
	}
	t.pending = nil
}

// judged returns a failure that the process has just reported, with its cause.
func (t *talk) judged(m message) told {
	f := told{message: m, failure: m.failure(), when: time.Now()}
	evidence := t.seen.Of(measurable(f.failure), ran(m.Rows, 1), 1)
	evidence.Boundary, evidence.Every = t.trend.newest(memory.LeakWindow)
	if t.holder != nil {
		h := t.holder.At(t.made)
		evidence.Holder = &h
	}
	f.verdict = memory.Diagnose(evidence)
	return f
}

// refusal records a failure that is left to the command's own code.
func (t *talk) refusal(f told) {
	t.refused, t.pending = &f, nil
	e := runs.Entry{Kind: runs.KindRefused, OOM: &f.failure, Where: f.Where, InStep: f.Step, Refusal: &runs.Refusal{Code: f.Code, Why: f.Why}}
	if f.Mixed {
		e.Mixed = f.Why
		t.attempt.mu.Lock()
		t.attempt.ended.Mixed = f.Why
		t.attempt.mu.Unlock()
	}
	t.noted("refused\n"+f.Why+"\n"+f.Where, e.Told())
}

func (t *talk) note(m message) {
	kind := runs.KindWorker
	if m.Level == "warning" {
		kind = runs.KindWarning
	}
	t.noted("", runs.Entry{Kind: kind, Text: m.Text, Spilled: m.Spilled})
}

// holds records what holds memory that grows. The user is told as soon as the script has been read, unless
// the process found it only when memory had run out: then it is part of what is said about that.
func (t *talk) holds(m message) {
	h := m.holder()
	t.holder = &h
	if h.Ends > h.Step {
		t.ends = time.Now().Add(time.Duration(h.Seconds * float64(time.Second)))
	}
	kind := runs.KindWorker
	if m.Level == "warning" {
		kind = runs.KindWarning
	}
	if !t.attempt.first("holds\n" + h.Kind + h.Name + h.Kept) { // the first to arrive, whichever is joined first
		return
	}
	if t.attempt.o.Joined == nil {
		t.noted("", runs.Entry{Kind: kind, Holder: &h}.Told())
		return
	}
	t.attempt.all.Go(func() {
		joined := t.attempt.o.Joined(h)
		t.noted("", runs.Entry{Kind: kind, Holder: &joined}.Told())
	})
}

// memory records what a memory of the process is held for. The process waits meanwhile, so that the
// driver reports the same moment.
func (t *talk) memory(m message) {
	var seen *memory.Seen
	if look := t.attempt.o.Look; look != nil && m.UUID != "" {
		seen = look(m.UUID, t.pid, m.Reserved)
	}
	b := memory.Divide(m.held(), seen)
	b.PID, b.Step, b.When = t.pid, m.Step, memory.When(m.Why)
	t.noted("", runs.Entry{Kind: runs.KindMemory, Breakdown: &b}.Told())
}

func (t *talk) once(key, text string) {
	t.noted(key, runs.Entry{Kind: runs.KindWorker, Text: text})
}

// first says whether a key has not been told before, and marks it as told.
func (a *Attempt) first(key string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	told := a.told[key]
	a.told[key] = true
	return !told
}

// noted writes an entry to the journal: at most one for each non-empty key, and at most
// notesMost in the whole attempt.
func (t *talk) noted(key string, e runs.Entry) {
	a := t.attempt
	if key != "" && !a.first(key) {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.notes++; a.notes > notesMost {
		return
	}
	a.o.Journal.Note(e)
}
