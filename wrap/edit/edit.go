package edit

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

// Format is how a configuration file is written.
type Format string

// The formats. In each of them headroom can edit a value without touching any other byte.
const (
	YAML   Format = "yaml"
	JSON   Format = "json"
	TOML   Format = "toml"
	Python Format = "python" // assignments at the top level
)

// Edit replaces the bytes [Start, End) of a file with New. Every other byte stays.
type Edit struct {
	Start, End int
	New        string
}

// Apply returns content with the edits applied. The edits must not overlap.
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

// Error says why a key cannot be read or changed in a file, for example because
// another key would change with it.
type Error struct {
	Key    string
	Line   int // 0 if no single line is at fault, or if it is not known
	Reason string
}

func (e *Error) Error() string {
	if e.Line > 0 {
		return fmt.Sprintf("line %d: %s: %s", e.Line, e.Key, e.Reason)
	}
	return fmt.Sprintf("%s: %s", e.Key, e.Reason)
}

// Scalar is a value in a file.
type Scalar struct {
	start, end int    // its bytes are [start, end); end is 0 if the file has no bytes of its own for the value
	Text       string // the value without quotes; an expression is kept as it was written
	Null       bool   // the key is present, but its value is null
	Line       int
}

// editor finds and changes values in files of one format.
type editor interface {
	// decode returns all values of the file. Set uses them to prove that an edit changed only one.
	decode(content []byte) (any, error)
	// find returns the value of a key; ok is false if the file does not have the key.
	find(content []byte, keys []string) (value Scalar, ok bool, err error)
	// replacement returns the edit that changes old, the value of a key that find has found.
	replacement(content []byte, old Scalar, value string) (Edit, error)
	// insertion returns the edit that adds a key with a value.
	insertion(content []byte, keys []string, value string) (Edit, error)
}

// editor returns the editor for files of the format.
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

// FormatOf returns the format that a file's suffix implies, or "" if it implies none.
func FormatOf(name string) Format {
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

// Quoted returns text as a string in the format's notation.
func (f Format) Quoted(text string) string {
	if f == JSON {
		return text // jsonEditor itself quotes values that need it
	}
	return strconv.Quote(text)
}

// Text returns value, quoted if a reader would otherwise take it for a boolean: Python's
// libraries read YAML 1.1, where no and off mean false.
func (f Format) Text(value string) string {
	if f == YAML && slices.Contains([]string{"y", "n", "yes", "no", "on", "off"}, strings.ToLower(value)) {
		return strconv.Quote(value)
	}
	return value
}

// Find returns the value of a dotted key in a file, and whether the file has the key.
func (f Format) Find(content []byte, key string) (Scalar, bool, error) {
	return f.editor().find(content, strings.Split(key, "."))
}

// Set returns the edit that gives a dotted key a value, adding the key if it is absent.
// Set checks the edit against the values of the whole file. If other keys would change
// too, such as those that refer to an anchor, the error is an [*Error].
func (f Format) Set(content []byte, key, value string) (Edit, error) {
	ed, keys := f.editor(), strings.Split(key, ".")
	before, err := ed.decode(content)
	if err != nil {
		return Edit{}, &Error{key, 0, err.Error()}
	}
	old, found, err := ed.find(content, keys)
	if err != nil {
		return Edit{}, err
	}
	if bytes.Contains(content, []byte("${"+key+"}")) {
		return Edit{}, &Error{key, old.Line, "another key is interpolated from this one, and would change with it"}
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
		return Edit{}, &Error{key, old.Line, "cannot be changed here: " + err.Error()}
	}
	got, ok := lookup(after, keys)
	if !ok || !same(got, value) {
		return Edit{}, &Error{key, old.Line, "cannot be changed here"}
	}
	if !reflect.DeepEqual(with(before, keys, got), after) {
		return Edit{}, &Error{key, old.Line, "other keys refer to it, and would change with it; write the number in each place"}
	}
	return edit, nil
}

// same reports whether a decoded value is the one that was written.
func same(got any, value string) bool {
	text := fmt.Sprint(got)
	return text == value || text == strings.Trim(value, `"`) || "["+strings.Join(strings.Fields(strings.Trim(text, "[]")), ", ")+"]" == value
}

// lookup returns the value of a nested key in decoded values, and whether it exists.
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

// Has reports whether a file has a key, whatever its value is. It returns false if the
// file cannot be decoded.
func (f Format) Has(content []byte, key string) bool {
	values, err := f.editor().decode(content)
	if err != nil {
		return false
	}
	_, ok := lookup(values, strings.Split(key, "."))
	return ok
}

// rawScalar returns the offset just past text, including any quotes around it, if content
// has text at start, either plain or in quotes. Otherwise ok is false.
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

// lineAt returns the line number, counted from 1, of the byte at offset at.
func lineAt(content []byte, at int) int { return bytes.Count(content[:at], []byte("\n")) + 1 }

// newline returns the line ending that the file uses.
func newline(content []byte) string {
	if bytes.Contains(content, []byte("\r\n")) {
		return "\r\n"
	}
	return "\n"
}

var errNotMapping = errors.New("the file is not a mapping of keys to values")
