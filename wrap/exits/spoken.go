package exits

import (
	"slices"
	"strconv"
	"strings"
)

func digits(s string) int {
	n, _ := strconv.Atoi(s)
	return n
}

// readText processes a line that is not part of a traceback.
func (s *scanner) readText(st *rankStream, l logLine) {
	if at := exceptionLine.FindStringSubmatch(l.text); at != nil && exceptionType.MatchString(at[1]) && speaks(l) {
		s.chains++
		st.chain = s.chains
		s.add(st, l, fault{typ: at[1], message: at[2], raised: l.level == unrated, chain: s.chains})
		return
	}
	m := meaningOf(l.text)
	if m.meaning == nothing || m.meaning != cascade && advises(l.text, m) {
		return
	}
	switch {
	case m.meaning == confirmation:
		s.confirmed = l.text
	case m.meaning == workerKilled:
		s.killed = l.text
	case strings.Contains(l.text, "memory allocation failed with OOM on device"):
		s.allocator = &fault{rank: l.rank, message: l.text, match: m, born: s.progress, line: s.lines}
	case speaks(l):
		died := strings.HasPrefix(strings.TrimSpace(l.text), "what():") || strings.HasPrefix(l.text, "terminate called")
		s.chains++
		s.add(st, l, fault{message: l.text, raised: died, chain: s.chains})
	}
}

// speaks reports whether a line can be an error: it has the level of an error, or none.
// Loggers give a lower level, such as info or warning, to lines that are not errors.
func speaks(l logLine) bool { return l.level == unrated || l.level == failure }

// plainTypes are exceptions that usually come from mistakes in the program itself. Their
// messages are one line long, so the lines below are not part of the message.
var plainTypes = []string{"ValueError", "KeyError", "TypeError", "IndexError", "AttributeError", "AssertionError", "ImportError",
	"ModuleNotFoundError", "FileNotFoundError", "NameError", "UnboundLocalError", "NotImplementedError", "ZeroDivisionError",
	"KeyboardInterrupt", "SystemExit", "PermissionError", "SyntaxError"}

// understand determines the meaning of a fault from its type and its whole message.
func (f *fault) understand() {
	text := f.message
	if f.typ != "" {
		text = f.typ + ": " + f.message
	}
	if slices.Contains(plainTypes, f.typ) {
		text, _, _ = strings.Cut(text, "\n")
	}
	f.match = meaningOf(text)
	switch {
	case f.match.meaning == lookalike:
	case slices.Contains(deviceMemoryTypes, f.typ):
		f.match.meaning = deviceMemory
	case slices.Contains(hostMemoryTypes, f.typ):
		if !f.match.meaning.memory() {
			f.match.meaning = hostMemory
		}
	case f.match.meaning.memory() && quotes(f, text):
		f.match = textMatch{}
	}
}

// quotes reports whether an exception whose type is not about memory only mentions memory.
func quotes(f *fault, text string) bool {
	at := f.match
	if f.typ != "" {
		skip := len(f.typ) + 2
		text, at.at, at.end = text[min(skip, len(text)):], max(0, at.at-skip), max(0, at.end-skip)
	}
	return advises(text, at)
}

// survived reports whether the training continued after a fault.
func (f findings) survived(x fault) bool {
	need := survivedAlone
	if f.ranks {
		need = survivedRanks
	}
	return f.progress-x.born >= need
}

// root returns the fault that ended the command, and whether the output shows one.
func (f findings) root() (fault, bool) {
	perRank := map[int]fault{}
	for _, x := range f.candidates() {
		if have, ok := perRank[x.rank]; !ok || weightier(x, have) {
			perRank[x.rank] = x
		}
	}
	if x, ok := perRank[f.firstRank]; ok && f.firstRank != rankUnknown {
		return x, true
	}
	best, found := fault{}, false
	for _, x := range perRank {
		if !found || x.raised && !best.raised || x.raised == best.raised && x.line < best.line {
			best, found = x, true
		}
	}
	if found && best.rank == rankUnknown {
		best.rank = f.firstRank
	}
	return best, found
}

// candidates returns the faults that the command did not survive and that are not
// consequences of another process's failure. They are in the order of the output, with one
// fault for each chain of exceptions.
func (f findings) candidates() []fault {
	var all []fault
	for _, x := range f.faults {
		x.understand()
		if f.survived(x) {
			continue
		}
		if n := len(all); n > 0 && x.chain > 0 && slices.ContainsFunc(all, func(y fault) bool { return y.chain == x.chain }) {
			i := slices.IndexFunc(all, func(y fault) bool { return y.chain == x.chain })
			all[i] = merge(all[i], x)
			continue
		}
		all = append(all, x)
	}
	return slices.DeleteFunc(all, func(x fault) bool { return x.match.meaning == cascade })
}

// merge returns the one of two exceptions in a chain that explains the chain. That is the
// first one whose meaning is known, since later exceptions pass it on or arise while it
// is handled. If neither meaning is known, merge returns the earlier exception if the
// later one passes it on, and otherwise the later one.
func merge(earlier, later fault) fault {
	known := func(m meaning) bool { return m != nothing && m != cascade }
	e, l := earlier.match.meaning, later.match.meaning
	switch {
	case known(e) && e == l && readAmounts(earlier.message).requested == 0 && readAmounts(later.message).requested > 0:
		later.frames = slices.Concat(earlier.frames, later.frames) // "Caught … in replica 0": the original has the numbers
		return later
	case known(e) || !known(l) && later.direct:
		earlier.other = earlier.other || !later.direct && l != e && l != cascade
		return earlier
	}
	return later
}

// weightier reports whether x, which came later in the same rank's output than y, explains
// the end of that rank better. An exception explains more than an error that is only in a
// log. An exception about memory explains more than another exception after it.
func weightier(x, y fault) bool {
	xMemory, yMemory := x.match.meaning.memory() || x.match.meaning == deviceGone, y.match.meaning.memory() || y.match.meaning == deviceGone
	switch {
	case x.raised != y.raised:
		return x.raised
	case xMemory && yMemory:
		return readAmounts(y.message).requested == 0 && readAmounts(x.message).requested > 0
	case yMemory:
		return false
	}
	return true
}
