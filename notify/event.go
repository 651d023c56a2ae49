package notify

import (
	"encoding/json"
	"strings"
	"time"
)

// Event is a message. As JSON it is what a command reads on its standard input, and what a URL gets that is of
// no known service.
type Event struct {
	Kind    Kind      `json:"kind"`
	Run     string    `json:"run"`
	Host    string    `json:"host"`
	Time    time.Time `json:"time"`
	Text    string    `json:"text"`              // what has happened, in one sentence
	Summary []string  `json:"summary,omitempty"` // of the run's report, a line each
	Folder  string    `json:"folder,omitempty"`  // of the run, as an absolute path
}

// These bound a message: the services refuse longer ones (Discord takes 2,000 characters), and
// one that fits into a pipe's buffer needs no reader.
const (
	textMost, pathMost, lineMost = 600, 300, 120 // characters
	linesMost                    = 6
)

// bounded returns e with texts that no receiver is too small for.
func (e Event) bounded() Event {
	e.Text = clipped(e.Text, textMost)
	lines := e.Summary[:min(len(e.Summary), linesMost)]
	e.Summary = make([]string, len(lines))
	for i, line := range lines {
		e.Summary[i] = clipped(line, lineMost)
	}
	e.Run, e.Host, e.Folder = clipped(e.Run, lineMost), clipped(e.Host, lineMost), clipped(e.Folder, pathMost)
	return e
}

func clipped(text string, most int) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}
	return text
}

// Title says in a few words what the message is about.
func (e Event) Title() string {
	switch e.Kind {
	case Finished:
		return e.Run + " has finished"
	case Failed:
		return e.Run + " has failed"
	case Interrupted:
		return e.Run + " was interrupted"
	case Survived:
		return e.Run + " ran out of memory, and goes on"
	case Leak:
		return e.Run + " will run out of memory"
	case Spill:
		return e.Run + " is slower: it uses memory of the host"
	}
	return "a test message from headroom"
}

// Body is what the message says below its title.
func (e Event) Body() string {
	lines := append([]string{e.Text}, e.Summary...)
	if e.Folder != "" {
		lines = append(lines, e.Host+":"+e.Folder)
	}
	return strings.Join(lines, "\n")
}

// line returns e as one line of JSON.
func (e Event) line() []byte {
	text, _ := json.Marshal(e) // of strings and a time, which have a JSON form
	return append(text, '\n')
}
