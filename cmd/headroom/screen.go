package main

import (
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"
)

// screen writes lines that stay and, on a terminal, one line at the bottom that
// is rewritten in place. It is safe for concurrent use: a signal is answered
// while a step is being shown.
//
// A rewrite is a single write that starts with a carriage return and ends by
// erasing what is left of the old line, so nothing flickers.
type screen struct {
	w     io.Writer
	live  bool       // the bottom line can be rewritten
	color bool       // colours are wanted
	width func() int // columns

	breaks func() bool // whether a line break has to come before the next line; may be nil

	mu     sync.Mutex
	bottom string // what the bottom line shows
}

// newScreen returns a screen that writes to f. If f is not a terminal, or TERM is dumb,
// the screen only writes plain lines that stay. A NO_COLOR that is not empty turns
// colours off (no-color.org).
func newScreen(f *os.File, env func(string) (string, bool)) *screen {
	kind, _ := env("TERM")
	noColor, _ := env("NO_COLOR")
	tty := term.IsTerminal(int(f.Fd())) && kind != "dumb"
	return &screen{w: f, live: tty, color: tty && noColor == "", width: func() int {
		w, _, err := term.GetSize(int(f.Fd()))
		if err != nil || w <= 0 {
			return 80
		}
		return w
	}}
}

// units are the units that are kept on one line with their numbers.
var units = []string{"B", "KB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "TiB", "s", "ms", "min", "h"}

// together reports whether two words stay on one line: a number and its unit, or parts of
// a change such as 1 → 2.
func together(number, unit string) bool {
	if number == "→" {
		return true
	}
	if number == "" || number[len(number)-1] < '0' || number[len(number)-1] > '9' {
		return false
	}
	end := strings.IndexFunc(unit, func(r rune) bool { return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	if end < 0 {
		end = len(unit)
	}
	return unit == "→" || strings.HasPrefix(unit, "%") || slices.Contains(units, unit[:end])
}

// folded breaks text between words so that it fits into width columns. Every line after
// a break is indented by indent columns. A word that is longer than a line is not broken:
// the terminal wraps it.
func folded(text string, width, indent int) string {
	var b strings.Builder
	column := 0
	words := strings.Split(text, " ")
	for i := 0; i < len(words); i++ {
		first, word := i == 0, words[i]
		for i+1 < len(words) && together(words[i], words[i+1]) {
			i++
			word += " " + words[i]
		}
		n := utf8.RuneCountInString(word)
		switch {
		case first:
		case column+1+n > width && column > indent:
			b.WriteString("\n" + strings.Repeat(" ", indent))
			column = indent
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += n
	}
	return b.String()
}

// printable returns text with every non-graphic character written as an escape, such as
// \x1b: text from a file must not move the cursor or change the colour.
func printable(text string) string {
	var b strings.Builder
	for _, r := range text {
		if unicode.IsGraphic(r) {
			b.WriteRune(r)
		} else {
			b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
		}
	}
	return b.String()
}

// printableLines is like [printable], but keeps line breaks.
func printableLines(text string) string {
	lines := strings.Split(text, "\n")
	for i, l := range lines {
		lines[i] = printable(l)
	}
	return strings.Join(lines, "\n")
}

const (
	eraseRest = "\x1b[K"
	red       = "\x1b[31m"
	green     = "\x1b[32m"
	yellow    = "\x1b[33m"
	cyan      = "\x1b[36m"
	plain     = ""
)

// print writes lines that stay, above the bottom line. A failed write is ignored:
// there is nowhere to report it.
func (s *screen) print(colour, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.color && colour != plain {
		text = colour + text + "\x1b[0m"
	}
	text += "\n"
	if s.breaks != nil && s.breaks() {
		text = "\n" + text
	}
	if s.bottom != "" {
		text = "\r" + eraseRest + text + s.bottom
	}
	_, _ = io.WriteString(s.w, text)
}

// Write prints the lines of a log as [screen.print] does, and never fails.
func (s *screen) Write(p []byte) (int, error) {
	s.print(plain, strings.TrimSuffix(string(p), "\n"))
	return len(p), nil
}

// show replaces the bottom line; text must be no wider than the terminal. ""
// removes it. Without a terminal nothing is written.
func (s *screen) show(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.live || text == s.bottom {
		return
	}
	s.bottom = text
	_, _ = io.WriteString(s.w, "\r"+text+eraseRest)
}
