package wrap

import (
	"strings"

	"headroom/memory"
)

// fault is an error that a command reported: an exception with its traceback, a
// runtime's last words, or a line of a log.
type fault struct {
	rank    int
	typ     string // of the exception; "" for a line that is not one
	message string // with the lines that belong to it
	frames  []stackFrame
	match   textMatch
	raised  bool // it ended a traceback or a process; a log line may merely mention an error
	chain   int  // the same for exceptions that led to one another
	other   bool // another error arose while this one was being handled
	direct  bool // the previous exception of its chain caused it directly, or quotes it
	born    int  // progress seen before this fault
	line    int
}

// Bounds of what a scan keeps.
const (
	faultsMost  = 512
	streamsMost = 1024
	messageMost = 4 << 10
	followMost  = 120 // lines of a message after its first
)

// findings is what one scan of a command's output found.
type findings struct {
	faults    []fault
	progress  int // weight of all that was seen
	ranks     bool
	firstRank int    // the rank that torchrun's summary names; rankUnknown without a summary
	confirmed string // a line of the kernel or of a scheduler about a kill for memory; "" without one
	killed    string // a line that says that a process got SIGKILL
	allocator *fault // the newest line of PyTorch's allocator about a failed allocation
	lines     int
}

// rankStream is what one rank prints, or what all ranks print where nothing tells them apart.
type rankStream struct {
	inTraceback bool
	indent      int // of its frames
	frames      []stackFrame
	chained     bool // the next traceback continues from the last exception
	direct      bool // and was caused by it directly
	chain       int
	lastFault   int // index in findings.faults, for the lines that follow the fault; -1 for none
	follow      int // how many such lines may still follow
}

// scanner reads output line by line.
type scanner struct {
	findings
	streams map[int]*rankStream
	chains  int
	root    bool // inside the section on the root cause in torchrun's summary
	summary int  // rank that the summary is describing; rankUnknown outside a summary
	bars    string
}

// scan finds the errors in output. Its time is linear in the output's length, and
// what it keeps is bounded.
func scan(output []byte) findings {
	s := newScanner()
	for line := range logLines(output) {
		s.lines++
		s.read(line)
	}
	return s.findings
}

func newScanner() *scanner {
	return &scanner{findings: findings{firstRank: rankUnknown}, streams: map[int]*rankStream{}, summary: rankUnknown}
}

func (s *scanner) read(l logLine) {
	if l.rank != rankUnknown || strings.Contains(l.text, "distributed") || strings.Contains(l.text, "NCCL") ||
		strings.Contains(l.text, "OMP_NUM_THREADS") {
		s.ranks = true
	}
	st := s.streamOf(l.rank)
	if s.readSummary(l.text) || st.readChain(l.text) || s.readTraceback(st, l) || s.follows(st, l) {
		return
	}
	if weight, key := progress(l.text); weight > 0 {
		if key != s.bars {
			s.bars, s.progress = key, s.progress+weight
		}
		return
	}
	s.readText(st, l)
}

func (s *scanner) streamOf(rank int) *rankStream {
	st := s.streams[rank]
	if st == nil && len(s.streams) >= streamsMost {
		rank = rankUnknown
		st = s.streams[rank]
	}
	if st == nil {
		st = &rankStream{lastFault: -1}
		s.streams[rank] = st
	}
	return st
}

var summaryRank = lazily(`^ +rank +: (\d{1,5}) \(local_rank: \d+\)`)

// readSummary learns from torchrun's table which rank failed first.
func (s *scanner) readSummary(text string) bool {
	switch {
	case strings.HasPrefix(text, "Root Cause (first observed failure)"):
		s.root = true
	case strings.HasPrefix(text, "====") && s.root && s.firstRank != rankUnknown:
		s.root, s.summary = false, rankUnknown
	default:
		at := summaryRank().FindStringSubmatch(text)
		if at == nil {
			return false
		}
		s.ranks, s.summary = true, digits(at[1])
		if s.root {
			s.firstRank = s.summary
		}
	}
	return true
}

func (st *rankStream) readChain(text string) bool {
	direct := strings.Contains(text, "The above exception was the direct cause of the following exception")
	if !direct && !strings.Contains(text, "During handling of the above exception, another exception occurred") {
		return false
	}
	st.chained, st.direct, st.inTraceback, st.follow = true, direct, false, 0
	return true
}

var (
	exceptionLine = lazily(`^((?:[A-Za-z_]\w*\.)*_?[A-Z]\w*(?:\[[\w., ]{1,80}\])?)(?::(?: (.*))?)?$`)
	// Without a traceback before it, a word counts as an exception only by its ending.
	exceptionType = lazily(`(?:Error|Exception|Interrupt|Exit|Failed|OutOfResources|Exhausted|Timeout)$`)
	qualified     = lazily(`\.[A-Z]\w*$|^StopIteration$`)
	tracebackHead = lazily(`Traceback \(most recent call last\)`)
)

// readTraceback reads tracebacks and the exceptions that end them.
func (s *scanner) readTraceback(st *rankStream, l logLine) bool {
	if tracebackHead().MatchString(l.text) {
		if strings.Contains(l.text, "Original Traceback") {
			st.chained, st.direct = true, true
		}
		st.inTraceback, st.frames, st.indent, st.follow = true, nil, 1, 0
		return true
	}
	if !st.inTraceback {
		return false
	}
	if f, ok := frameOf(l.text); ok {
		st.indent = max(1, indentOf(l.text))
		if len(st.frames) == framesMost {
			st.frames = append(st.frames[:framesMost/2], st.frames[framesMost/2+1:]...)
		}
		st.frames = append(st.frames, f)
		return true
	}
	if at := exceptionLine().FindStringSubmatch(l.text[min(indentOf(l.text), len(l.text)):]); at != nil && indentOf(l.text) < st.indent {
		if exceptionType().MatchString(at[1]) || qualified().MatchString(at[1]) {
			s.raise(st, l, at[1], at[2])
			return true
		}
	}
	return st.readCode(l.text)
}

// readCode reads the source line that follows a frame.
func (st *rankStream) readCode(text string) bool {
	if at := richCode().FindStringSubmatch(text); at != nil && len(st.frames) > 0 {
		st.frames[len(st.frames)-1].code = at[1]
		return true
	}
	if indentOf(text) <= st.indent || len(st.frames) == 0 {
		return strings.HasPrefix(text, "╭") || strings.HasPrefix(text, "╰")
	}
	if f := &st.frames[len(st.frames)-1]; f.code == "" {
		f.code = strings.TrimSpace(text)
	}
	return true
}

func indentOf(text string) int { return len(text) - len(strings.TrimLeft(text, " \t")) }

// raise records the exception that ends a traceback.
func (s *scanner) raise(st *rankStream, l logLine, typ, message string) {
	f := fault{typ: typ, message: message, frames: st.frames, raised: true, direct: st.direct}
	if st.chained && st.chain > 0 {
		f.chain = st.chain
	} else {
		s.chains++
		f.chain = s.chains
	}
	st.inTraceback, st.frames, st.chained, st.direct, st.chain = false, nil, false, false, f.chain
	s.add(st, l, f)
}

// add records a fault. What it means is worked out once the lines that follow are known.
func (s *scanner) add(st *rankStream, l logLine, f fault) {
	f.rank, f.born, f.line = l.rank, s.progress, s.lines
	f.match = meaningOf(f.typ + ": " + f.message)
	if f.rank == rankUnknown {
		f.rank = s.summary
	}
	if len(s.faults) == faultsMost {
		s.faults = append(s.faults[:0], s.faults[faultsMost/2:]...)
		for _, other := range s.streams {
			other.lastFault -= faultsMost / 2 // below 0 if the fault is gone
		}
	}
	s.faults = append(s.faults, f)
	st.lastFault, st.follow = len(s.faults)-1, followMost
}

// follows reads the lines that belong to the message of the fault before them:
// messages of XLA, TensorFlow and PyTorch with cudaMallocAsync have several, and Rich
// breaks long ones.
func (s *scanner) follows(st *rankStream, l logLine) bool {
	if st.follow == 0 || st.lastFault < 0 {
		return false
	}
	weight, _ := progress(l.text)
	if weight > 0 || l.level != unrated || exceptionWord(l.text) || strings.HasPrefix(l.text, "====") ||
		strings.HasPrefix(l.text, "terminate called") || strings.HasPrefix(l.text, "Exception ignored in") {
		st.follow = 0
		return false
	}
	st.follow--
	f := &s.faults[st.lastFault]
	if l.text == "" && f.message != "" && !strings.HasSuffix(f.message, ":") {
		st.follow = 0
		return true
	}
	switch m := meaningOf(l.text); m.meaning {
	case confirmation, workerKilled:
		return false
	case cascade: // NCCL's errors have several lines; below an error of another kind, such a line is not part of that error
		if f.match.meaning != cascade {
			return false
		}
	}
	if _, ok := frameOf(l.text); !ok && len(f.message) < messageMost {
		f.message = strings.TrimSpace(f.message + "\n" + strings.TrimSpace(l.text))
	}
	return true
}

func exceptionWord(text string) bool {
	at := exceptionLine().FindStringSubmatch(text)
	return at != nil && exceptionType().MatchString(at[1])
}

// phase is the phase of the work in which a fault happened.
func (f fault) phase() memory.Phase { return phaseOf(f.frames) }
