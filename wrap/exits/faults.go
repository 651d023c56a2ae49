package exits

import (
	"regexp"
	"strings"

	"headroom/memory"
)

// fault is an error that a command reported: an exception with its traceback, a
// runtime's last words, or a line of a log.
type fault struct {
	rank    int
	typ     string // type of the exception; "" if the line is not an exception
	message string // including the lines that continue it
	frames  []stackFrame
	match   textMatch
	raised  bool // it ended a traceback or a process; a log line may merely mention an error
	chain   int  // number of a chain of exceptions that led to one another; 0 for a fault outside any chain
	other   bool // another error arose while this one was being handled
	direct  bool // the previous exception of its chain caused it directly, or contains it as a quotation
	born    int  // how much progress had been seen before this fault
	line    int  // number of the line of output that reported it
}

// Limits on what a scan keeps.
const (
	faultsMost  = 512
	streamsMost = 1024
	messageMost = 4 << 10
	followMost  = 120 // lines of a message after its first
)

// findings holds what one scan of a command's output found.
type findings struct {
	faults    []fault
	progress  int    // total weight of all signs of progress; see barWeight
	ranks     bool   // the output shows that there may be several ranks
	firstRank int    // the rank that torchrun's summary names; rankUnknown without a summary
	confirmed string // a line in which the kernel or a scheduler reports an out-of-memory kill; "" without one
	killed    string // a line that says that a process got SIGKILL; "" without one
	allocator *fault // the newest line in which PyTorch's allocator reports a failed allocation; nil without one
	lines     int    // number of lines read
}

// rankStream is the state of the scan for the output of one rank, or of all ranks if
// their lines cannot be told apart.
type rankStream struct {
	inTraceback bool
	indent      int // indent of the traceback's frames
	frames      []stackFrame
	chained     bool // the next exception belongs to the chain of the last one
	direct      bool // the last exception caused the next one directly, or quotes it
	chain       int  // chain of the last exception
	lastFault   int  // index of the last fault in findings.faults; negative if there is none
	follow      int  // how many further lines may still belong to the last fault
}

// scanner reads output line by line.
type scanner struct {
	findings
	streams map[int]*rankStream
	chains  int
	root    bool   // inside the section on the root cause in torchrun's summary
	summary int    // rank that the summary is describing; rankUnknown outside a summary
	bars    string // key of the newest progress
}

// scan finds the errors in output. Its time is linear in the length of the output, and
// the amount that it keeps is bounded.
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

var summaryRank = regexp.MustCompile(`^ +rank +: (\d{1,5}) \(local_rank: \d+\)`)

// readSummary reads a line of torchrun's summary, which says which rank failed first. It
// reports whether the line was part of the summary.
func (s *scanner) readSummary(text string) bool {
	switch {
	case strings.HasPrefix(text, "Root Cause (first observed failure)"):
		s.root = true
	case strings.HasPrefix(text, "====") && s.root && s.firstRank != rankUnknown:
		s.root, s.summary = false, rankUnknown
	default:
		at := summaryRank.FindStringSubmatch(text)
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
	exceptionLine = regexp.MustCompile(`^((?:[A-Za-z_]\w*\.)*_?[A-Z]\w*(?:\[[\w., ]{1,80}\])?)(?::(?: (.*))?)?$`)
	// Without a traceback before it, a word counts as an exception only if it ends like this.
	exceptionType = regexp.MustCompile(`(?:Error|Exception|Interrupt|Exit|Failed|OutOfResources|Exhausted|Timeout)$`)
	qualified     = regexp.MustCompile(`\.[A-Z]\w*$|^StopIteration$`)
	tracebackHead = regexp.MustCompile(`Traceback \(most recent call last\)`)
)

// readTraceback reads a line of a traceback, or the exception that ends one. It reports
// whether the line was one of these.
func (s *scanner) readTraceback(st *rankStream, l logLine) bool {
	if tracebackHead.MatchString(l.text) {
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
	if at := exceptionLine.FindStringSubmatch(l.text[min(indentOf(l.text), len(l.text)):]); at != nil && indentOf(l.text) < st.indent {
		if exceptionType.MatchString(at[1]) || qualified.MatchString(at[1]) {
			s.raise(st, l, at[1], at[2])
			return true
		}
	}
	return st.readCode(l.text)
}

// readCode reads the source line that follows a frame. It reports whether the line
// belongs to the traceback.
func (st *rankStream) readCode(text string) bool {
	if len(st.frames) > 0 && (indentOf(text) > st.indent || richCode.MatchString(text)) {
		return true
	}
	return strings.HasPrefix(text, "╭") || strings.HasPrefix(text, "╰")
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

// add records a fault. Its meaning is worked out again later, when the lines that follow
// it are known.
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

// continues reports whether a line may be part of a message that the line before it begins.
func (l logLine) continues() bool {
	weight, _ := progress(l.text)
	return weight == 0 && l.level == unrated && !exceptionWord(l.text) && !strings.HasPrefix(l.text, "====") &&
		!strings.HasPrefix(l.text, "terminate called") && !strings.HasPrefix(l.text, "Exception ignored in")
}

// follows reads a line that may continue the message of the fault before it. It returns
// true if nothing else has to read the line. Messages from XLA, TensorFlow and PyTorch
// with cudaMallocAsync span several lines, and Rich wraps long ones.
func (s *scanner) follows(st *rankStream, l logLine) bool {
	if st.follow == 0 || st.lastFault < 0 {
		return false
	}
	if l.continues() {
		st.follow--
	} else {
		st.follow = 0
		return false
	}
	f := &s.faults[st.lastFault]
	if l.text == "" && f.message != "" && !strings.HasSuffix(f.message, ":") {
		st.follow = 0
		return true
	}
	switch m := meaningOf(l.text); m.meaning {
	case confirmation, workerKilled:
		return false
	case cascade: // NCCL's own errors have several lines; below any other error, such a line is not part of it
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
	at := exceptionLine.FindStringSubmatch(text)
	return at != nil && exceptionType.MatchString(at[1])
}

// phase returns the phase of the training in which a fault happened, judging by its
// traceback.
func (f fault) phase() memory.Phase { return phaseOf(f.frames) }
