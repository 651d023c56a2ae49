package wrap

import (
	"bytes"
	"errors"
	"fmt"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Edit replaces the bytes [Start, End) of a file; every other byte stays.
type Edit struct {
	Start, End int
	New        string
}

// Apply is content with the edits made. They must not overlap.
func Apply(content []byte, edits []Edit) []byte {
	sorted := slices.SortedStableFunc(slices.Values(edits), func(a, b Edit) int { return a.Start - b.Start })
	var out []byte
	at := 0
	for _, e := range sorted {
		out = append(append(out, content[at:e.Start]...), e.New...)
		at = e.End
	}
	return append(out, content[at:]...)
}

// EditError says that a key cannot be changed in a file without touching something
// else.
type EditError struct {
	Key    string
	Line   int // 0 if it concerns no single line
	Reason string
}

func (e *EditError) Error() string {
	if e.Line > 0 {
		return fmt.Sprintf("line %d: %s: %s", e.Line, e.Key, e.Reason)
	}
	return fmt.Sprintf("%s: %s", e.Key, e.Reason)
}

// scalar is a value in a file.
type scalar struct {
	start, end int    // its bytes; end is 0 if the value has none of its own
	text       string // without quotes; an expression as it was written
	null       bool   // present but empty
	line       int
}

// editor finds and changes values in files of one format.
type editor interface {
	// decode is the whole file as values, to prove that an edit changed only one of them.
	decode(content []byte) (any, error)
	// find is the value of a key; ok is false if there is none.
	find(content []byte, keys []string) (value scalar, ok bool, err error)
	// replacement is the edit that changes the value of a key that was found.
	replacement(content []byte, old scalar, value string) (Edit, error)
	// insertion is the edit that adds a key.
	insertion(content []byte, keys []string, value string) (Edit, error)
}

// editor is the editor for files of the format.
func (f Format) editor() editor {
	switch f {
	case JSON:
		return jsonEditor{}
	case TOML:
		return tomlEditor{}
	case Python:
		return pythonEditor{}
	}
	return yamlEditor{}
}

// formatOf is the format that a file's suffix stands for, "" if it stands for none.
func formatOf(name string) Format {
	switch path.Ext(name) {
	case ".yaml", ".yml":
		return YAML
	case ".json":
		return JSON
	case ".toml":
		return TOML
	case ".py":
		return Python
	}
	return ""
}

// quoted is a text as a value of the format.
func (f Format) quoted(text string) string {
	if f == JSON {
		return text // its editor quotes what is not a number
	}
	return strconv.Quote(text)
}

// text is a value, quoted if it would otherwise be taken for a boolean: Python reads
// YAML 1.1, where no and off mean false.
func (f Format) text(value string) string {
	if f == YAML && slices.Contains([]string{"y", "n", "yes", "no", "on", "off"}, strings.ToLower(value)) {
		return strconv.Quote(value)
	}
	return value
}

// inFile is a value in the notation of files; frameworks' command lines take True and False.
func (t Type) inFile(value string) string {
	if t == Bool || t == Switch {
		return strings.ToLower(value)
	}
	return value
}

// find is the value of a dotted key in a file.
func (f Format) find(content []byte, key string) (scalar, bool, error) {
	return f.editor().find(content, strings.Split(key, "."))
}

// Set is the edit that gives a dotted key a value, adding the key if it is absent.
// The edit is checked against the values of the whole file: if it would change other
// keys too, such as those that refer to an anchor, the error is an [*EditError].
func (f Format) Set(content []byte, key, value string) (Edit, error) {
	ed, keys := f.editor(), strings.Split(key, ".")
	before, err := ed.decode(content)
	if err != nil {
		return Edit{}, &EditError{key, 0, err.Error()}
	}
	old, found, err := ed.find(content, keys)
	if err != nil {
		return Edit{}, err
	}
	if bytes.Contains(content, []byte("${"+key+"}")) {
		return Edit{}, &EditError{key, old.line, "another key is interpolated from this one, and would change with it"}
	}
	var edit Edit
	if found && old.end > 0 {
		edit, err = ed.replacement(content, old, value)
	} else {
		edit, err = ed.insertion(content, keys, value)
	}
	if err != nil {
		return Edit{}, err
	}
	after, err := ed.decode(Apply(content, []Edit{edit}))
	if err != nil {
		return Edit{}, &EditError{key, old.line, "cannot be changed here: " + err.Error()}
	}
	got, ok := lookup(after, keys)
	if !ok || !same(got, value) {
		return Edit{}, &EditError{key, old.line, "cannot be changed here"}
	}
	if !reflect.DeepEqual(with(before, keys, got), after) {
		return Edit{}, &EditError{key, old.line, "other keys refer to it, and would change with it; write the number in each place"}
	}
	return edit, nil
}

// same reports whether a decoded value is what was written.
func same(got any, value string) bool {
	text := fmt.Sprint(got)
	return text == value || text == strings.Trim(value, `"`) || "["+strings.Join(strings.Fields(strings.Trim(text, "[]")), ", ")+"]" == value
}

// lookup is the value of a key in decoded values.
func lookup(values any, keys []string) (any, bool) {
	for _, key := range keys {
		m, ok := values.(map[string]any)
		if !ok {
			return nil, false
		}
		if values, ok = m[key]; !ok {
			return nil, false
		}
	}
	return values, true
}

// with returns a copy of values in which the key has the given value.
func with(values any, keys []string, value any) any {
	if len(keys) == 0 {
		return value
	}
	out := map[string]any{}
	if m, ok := values.(map[string]any); ok {
		for k, v := range m {
			out[k] = v
		}
	}
	out[keys[0]] = with(out[keys[0]], keys[1:], value)
	return out
}

// has reports whether a file has a key, with whatever value.
func (f Format) has(content []byte, key string) bool {
	values, err := f.editor().decode(content)
	if err != nil {
		return false
	}
	_, ok := lookup(values, strings.Split(key, "."))
	return ok
}

// rawScalar finds the end of a value that begins at start, plain or in quotes; ok is
// false if the value is not there.
func rawScalar(content []byte, start int, text string) (end int, ok bool) {
	if start < 0 || start > len(content) {
		return 0, false
	}
	for _, raw := range []string{text, `"` + text + `"`, "'" + text + "'"} {
		if raw != "" && bytes.HasPrefix(content[start:], []byte(raw)) {
			return start + len(raw), true
		}
	}
	return 0, false
}

// lineAt is the line of a byte, from 1.
func lineAt(content []byte, at int) int { return bytes.Count(content[:at], []byte("\n")) + 1 }

// newline is how the file ends its lines.
func newline(content []byte) string {
	if bytes.Contains(content, []byte("\r\n")) {
		return "\r\n"
	}
	return "\n"
}

var errNotMapping = errors.New("the file is not a mapping of keys to values")
