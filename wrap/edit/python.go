package edit

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
)

// pythonEditor edits assignments at the top level of a Python file, such as nanoGPT's
// configurations. It reads the file line by line, and skips what is inside brackets and
// multi-line strings. It evaluates nothing.
type pythonEditor struct{}

// assignment matches name = expression, with or without a type annotation. A comment ends
// the expression; a # inside a string does not.
var assignment = regexp.MustCompile(`^([A-Za-z_]\w*)[ \t]*(?::[ \t]*\w+[ \t]*)?=[ \t]*((?:[^=#'"\s][^#'"\r\n]*?|"[^"\\\r\n]*"|'[^'\\\r\n]*')?)[ \t]*(?:#.*)?\r?$`)

// augmented matches name += expression, or the same with another operator.
var augmented = regexp.MustCompile(`^([A-Za-z_]\w*)[ \t]*(?://|\*\*|<<|>>|[-+*/%&|^@])=`)

// pythonAssign is one assignment.
type pythonAssign struct {
	name       string
	start, end int  // bytes of the expression; 0 for an augmented assignment
	again      bool // augmented, so it changes a variable that was assigned before
}

// scan returns the top-level assignments of a file, in order.
func (pythonEditor) scan(content []byte) []pythonAssign {
	var all []pythonAssign
	var s pythonState
	for at := 0; at < len(content); {
		end := at + bytes.IndexByte(content[at:], '\n')
		if end < at {
			end = len(content)
		}
		line := content[at:end]
		top := s.top()
		if m := assignment.FindSubmatchIndex(line); top && m != nil {
			all = append(all, pythonAssign{name: string(line[m[2]:m[3]]), start: at + m[4], end: at + m[5]})
		} else if m := augmented.FindSubmatch(line); top && m != nil {
			all = append(all, pythonAssign{name: string(m[1]), again: true})
		}
		s.line(line)
		at = end + 1
	}
	return all
}

// pythonState is the state of the scan at the start of a line, as determined by the lines
// above it.
type pythonState struct {
	depth  int    // number of brackets that are open
	quotes string // quotation marks that will end the open string; "" outside a string
	joined bool   // the line above ended in a backslash
}

func (s *pythonState) top() bool { return s.depth == 0 && s.quotes == "" && !s.joined }

// inString reads the beginning of rest, which is in a string, and returns its length.
func (s *pythonState) inString(rest string) int {
	switch {
	case rest[0] == '\\':
		return 2
	case strings.HasPrefix(rest, s.quotes):
		n := len(s.quotes)
		s.quotes = ""
		return n
	}
	return 1
}

func (s *pythonState) line(line []byte) {
	s.joined = s.quotes == "" && bytes.HasSuffix(bytes.TrimRight(line, "\r"), []byte(`\`))
	for i := 0; i < len(line); i++ {
		rest := string(line[i:])
		switch {
		case s.quotes != "":
			i += s.inString(rest) - 1
		case strings.HasPrefix(rest, `"""`) || strings.HasPrefix(rest, `'''`):
			s.quotes = rest[:3]
			i += 2
		case line[i] == '"' || line[i] == '\'':
			s.quotes = rest[:1]
		case line[i] == '#':
			i = len(line)
		case strings.IndexByte("([{", line[i]) >= 0:
			s.depth++
		case strings.IndexByte(")]}", line[i]) >= 0:
			s.depth = max(0, s.depth-1)
		}
	}
	if len(s.quotes) == 1 {
		s.quotes = "" // only a string in triple quotes may continue on the next line
	}
}

func (e pythonEditor) decode(content []byte) (any, error) {
	values := map[string]any{}
	for i, a := range e.scan(content) {
		key := a.name
		if _, twice := values[key]; twice {
			key = fmt.Sprintf("%s\x00%d", key, i)
		}
		values[key] = string(content[a.start:a.end])
	}
	return values, nil
}

func (e pythonEditor) find(content []byte, keys []string) (Scalar, bool, error) {
	var found *pythonAssign
	for _, a := range e.scan(content) {
		if a.name != strings.Join(keys, ".") {
			continue
		}
		if found != nil || a.again {
			return Scalar{}, false, &Error{a.name, 0, "assigned more than once; only one assignment can be read"}
		}
		found = &a
	}
	if found == nil {
		return Scalar{}, false, nil
	}
	text := string(content[found.start:found.end])
	return Scalar{start: found.start, end: found.end, Text: strings.Trim(text, `"'`), Null: text == "None", Line: lineAt(content, found.start)}, true, nil
}

func (e pythonEditor) replacement(_ []byte, old Scalar, value string) (Edit, error) {
	return Edit{old.start, old.end, value}, nil
}

// insertion adds the assignment at the end of the file, where no later line can change
// the value.
func (e pythonEditor) insertion(content []byte, keys []string, value string) (Edit, error) {
	line := keys[0] + " = " + value + newline(content)
	if len(content) > 0 && content[len(content)-1] != '\n' {
		line = newline(content) + line
	}
	return Edit{len(content), len(content), line}, nil
}
