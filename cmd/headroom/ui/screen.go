package ui

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

// Screen writes lines that stay and, on a terminal, one line at the bottom that
// is rewritten in place. It is safe for concurrent use: a signal is answered
// while a step is being shown.
//
// A rewrite is a single write that starts with a carriage return and ends by
// erasing what is left of the old line, so nothing flickers.
type Screen struct {
	Writer io.Writer
	Live   bool       // the bottom line can be rewritten
	Color  bool       // colours are wanted
	Width  func() int // columns

	Breaks func() bool // whether a line break has to come before the next line; may be nil

	mu     sync.Mutex
	bottom string // what the bottom line shows
}

// newScreen returns a screen that writes to f. If f is not a terminal, or TERM is dumb,
// the screen only writes plain lines that stay. A NO_COLOR that is not empty turns
// colours off (no-color.org).
func newScreen(f *os.File, env func(string) (string, bool)) *Screen {
	kind, _ := env("TERM")
	noColor, _ := env("NO_COLOR")
	tty := term.IsTerminal(int(f.Fd())) && kind != "dumb"
	return &Screen{Writer: f, Live: tty, Color: tty && noColor == "", Width: func() int {
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

// Printable returns text with every non-graphic character written as an escape, such as
// \x1b: text from a file must not move the cursor or change the colour.
func Printable(text string) string {
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

// PrintableLines is like [Printable], but keeps line breaks.
func PrintableLines(text string) string {
	lines := strings.Split(text, "\n")
	for i, l := range lines {
		lines[i] = Printable(l)
	}
	return strings.Join(lines, "\n")
}

// The colours of lines, and what erases the rest of a line, as a terminal takes them.
const (
	EraseRest = "\x1b[K"
	Red       = "\x1b[31m"
	Green     = "\x1b[32m"
	Yellow    = "\x1b[33m"
	Cyan      = "\x1b[36m"
	Plain     = ""
)

// print writes lines that stay, above the bottom line. A failed write is ignored:
// there is nowhere to report it.
func (s *Screen) print(colour, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Color && colour != Plain {
		text = colour + text + "\x1b[0m"
	}
	text += "\n"
	if s.Breaks != nil && s.Breaks() {
		text = "\n" + text
	}
	if s.bottom != "" {
		text = "\r" + EraseRest + text + s.bottom
	}
	_, _ = io.WriteString(s.Writer, text)
}

// Write prints the lines of a log as any other line is printed, and never fails.
func (s *Screen) Write(p []byte) (int, error) {
	s.print(Plain, strings.TrimSuffix(string(p), "\n"))
	return len(p), nil
}

// Show replaces the bottom line; text must be no wider than the terminal. ""
// removes it. Without a terminal nothing is written.
func (s *Screen) Show(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.Live || text == s.bottom {
		return
	}
	s.bottom = text
	_, _ = io.WriteString(s.Writer, "\r"+text+EraseRest)
}
