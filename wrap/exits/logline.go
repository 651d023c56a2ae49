package exits

import (
	"iter"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// Limits on how much of a command's output is read. Errors are at the end; the
// longest known message, with PyTorch's hints, is shorter than 2 KiB.
const (
	scanMost    = 512 << 10 // bytes at the end of the output
	lineMost    = 8 << 10   // bytes of one line
	prefixMost  = 6         // prefixes on one line: launcher, time, rank, level, …
	rankUnknown = -1
)

// severity is how serious a line is, according to the logger that wrote it.
type severity int

const (
	unrated severity = iota
	routine          // debug, info
	warning
	failure // error, critical
)

// logLine is a line of output without what launchers and loggers put in front of it.
type logLine struct {
	text  string // right-trimmed; its indent is kept
	rank  int    // rank that printed the line, according to its prefix; rankUnknown if no prefix names a rank
	level severity
}

// logLines yields the lines of output in order. A carriage return ends a line as
// well, so that each state of a progress bar is a line.
func logLines(tail []byte) iter.Seq[logLine] {
	tail = tail[max(0, len(tail)-scanMost):]
	return func(yield func(logLine) bool) {
		for len(tail) > 0 {
			end := 0
			for end < len(tail) && tail[end] != '\n' && tail[end] != '\r' {
				end++
			}
			line := readLine(string(tail[:min(end, lineMost)]))
			if !yield(line) {
				return
			}
			if end+1 < len(tail) && tail[end] == '\r' && tail[end+1] == '\n' {
				end++
			}
			tail = tail[min(end+1, len(tail)):]
		}
	}
}

// prefix is something that launchers and loggers put in front of a program's own words.
// The groups named rank and level in its pattern capture the rank and the level.
type prefix struct {
	pattern     *regexp.Regexp
	rank, level int // numbers of the groups; -1 if the pattern has no such group
}

func newPrefix(pattern string) prefix {
	re := regexp.MustCompile("^(?:" + pattern + ")")
	return prefix{re, re.SubexpIndex("rank"), re.SubexpIndex("level")}
}

const (
	levelNames = `(?P<level>DEBUG|INFO|NOTICE|WARNING|WARN|ERROR|CRITICAL|FATAL)`
	clock      = `\d\d:\d\d:\d\d(?:[.,]\d{1,9})?`
	date       = `\d{4}[-/]\d\d[-/]\d\d`
)

// prefixes returns the known prefixes. The first call compiles them.
var prefixes = sync.OnceValue(func() []prefix {
	return []prefix{
		newPrefix(`\[(?:[Rr]ank ?|RANK |default|trainer|worker|GPU ?)?(?P<rank>\d{1,5})\](?:: ?| )`), // torch, torchrun --tee
		newPrefix(`\[(?:[Rr]ank ?|RANK )(?P<rank>\d{1,5})\] ?`),
		newPrefix(`\[\d+,(?P<rank>\d{1,5})\]<std(?:err|out)>: ?`),                             // mpirun --tag-output
		newPrefix(`(?:[Rr]ank |RANK )?(?P<rank>\d{1,5})(?:/\d{1,5})?: `),                      // srun --label
		newPrefix(`\(\w+(?: rank=(?P<rank>\d{1,5}),?)? pid=\d+(?:, ip=[\d.]+)?\) `),           // Ray
		newPrefix(`[\w.-]{1,40}[-_](?P<rank>\d{1,5}) +\| `),                                   // docker compose
		newPrefix(`\[?` + date + `[T ]` + clock + `(?:Z|[+-]\d\d:?\d\d)?\]?(?: *[-|,] +| *)`), // ISO time
		newPrefix(`\[?` + clock + `\]? `),
		newPrefix(`\[ *\d+\.\d{6}\] `),                                                  // dmesg
		newPrefix(`[A-Z][a-z]{2} [ \d]\d ` + clock + ` \S+ `),                           // syslog
		newPrefix(`\[?(?P<level>[IWEF])\d{3,4} ` + clock + ` +(?:\d+ )?[^\]\s]+\] ?`),   // glog, torch
		newPrefix(`\[` + levelNames + `\|[^\]]*\] (?:` + date + ` ` + clock + ` )?>> `), // Transformers
		newPrefix(levelNames + ` *[|] [\w.<>]+:[\w<>]+:\d+ - `),                         // loguru
		newPrefix(`(?:\[[\w.]+\] ?|[\w.]+ *[-|] +)?\[?` + levelNames + `\]?(?::[\w.]+:| *[-|:] *(?:[\w.]+ *[-|] )?|  *)`),
	}
})

var levels = map[string]severity{
	"DEBUG": routine, "INFO": routine, "NOTICE": routine, "I": routine,
	"WARNING": warning, "WARN": warning, "W": warning,
	"ERROR": failure, "CRITICAL": failure, "FATAL": failure, "E": failure, "F": failure,
}

// readLine strips colours, prefixes and the borders of panels from a line.
func readLine(raw string) logLine {
	line := logLine{text: strings.TrimRight(plain(raw), " \t"), rank: rankUnknown}
	for range prefixMost {
		rest, found := line.strip()
		if !found {
			break
		}
		line.text = rest
	}
	line.text = unboxed(line.text)
	return line
}

// strip returns the line's text without its first prefix, and records the rank and level
// that the prefix names.
func (l *logLine) strip() (rest string, found bool) {
	if l.text == "" || !strings.ContainsRune("[(0123456789", rune(l.text[0])) && !letter(l.text[0]) {
		return l.text, false
	}
	for _, p := range prefixes() {
		at := p.pattern.FindStringSubmatchIndex(l.text)
		if at == nil {
			continue
		}
		if g := p.rank; g >= 0 && at[2*g] >= 0 && l.rank == rankUnknown {
			l.rank, _ = strconv.Atoi(l.text[at[2*g]:at[2*g+1]])
		}
		if g := p.level; g >= 0 && at[2*g] >= 0 && l.level == unrated {
			l.level = levels[l.text[at[2*g]:at[2*g+1]]]
		}
		return l.text[at[1]:], true
	}
	return l.text, false
}

func letter(c byte) bool { return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_' }

// escape matches a terminal's control sequence: colours, cursor movements, titles.
var escape = regexp.MustCompile("\x1b(?:\\[[0-9;?]*[ -/]*[@-~]|\\][^\x07\x1b]*(?:\x07|\x1b\\\\)?|[@-Z\\\\^_])")

func plain(s string) string {
	if strings.Contains(s, "\x1b") {
		s = escape.ReplaceAllString(s, "")
	}
	return strings.ToValidUTF8(s, "?")
}

// unboxed removes the borders that Rich's panels and exception groups draw around a line.
func unboxed(s string) string {
	inner := strings.TrimLeft(s, " ")
	for _, border := range []string{"│", "┃", "|"} {
		if rest, ok := strings.CutPrefix(inner, border); ok {
			rest = strings.TrimRight(strings.TrimSuffix(rest, border), " ")
			return strings.TrimPrefix(rest, " ")
		}
	}
	return s
}
