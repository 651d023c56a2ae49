package edit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// jsonEditor edits a file that holds one JSON document. It refuses a document in which an
// object has the same key twice: parsers do not agree on which of the two counts.
type jsonEditor struct{}

func (e jsonEditor) decode(content []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(content))
	dec.UseNumber()
	var values any
	if err := dec.Decode(&values); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("unexpected content after the end of the document")
	}
	if _, ok := values.(map[string]any); !ok {
		return nil, errNotMapping
	}
	return values, nil
}

// jsonValue is the position of one value in a document: its bytes are [start, end).
type jsonValue struct {
	start, end int
	object     bool
}

// scan returns the position of the value of every key, indexed by the key's path. A path
// consists of the keys on the way to the value, with a NUL before each. The path of the
// document itself is "". Values inside lists have no path.
func (e jsonEditor) scan(content []byte) (map[string]jsonValue, error) {
	s := jsonScanner{content: content, dec: json.NewDecoder(bytes.NewReader(content)), found: map[string]jsonValue{}}
	s.dec.UseNumber()
	return s.found, s.value("", true)
}

type jsonScanner struct {
	content []byte
	dec     *json.Decoder
	found   map[string]jsonValue
}

// value reads one value. If noted is true, it records the value's position under path.
func (s *jsonScanner) value(path string, noted bool) error {
	before := int(s.dec.InputOffset())
	token, err := s.dec.Token()
	if err != nil {
		return err
	}
	rest := s.content[before:]
	start := before + len(rest) - len(bytes.TrimLeft(rest, " \t\r\n,:"))
	delim, composite := token.(json.Delim)
	if composite {
		err = s.members(delim, path, noted)
	}
	if noted {
		if _, twice := s.found[path]; twice {
			return fmt.Errorf("%s is given twice", strings.ReplaceAll(path[1:], "\x00", "."))
		}
		s.found[path] = jsonValue{start, int(s.dec.InputOffset()), delim == '{'}
	}
	return err
}

func (s *jsonScanner) members(open json.Delim, path string, noted bool) error {
	for s.dec.More() {
		inner := ""
		if open == '{' {
			key, err := s.dec.Token()
			if err != nil {
				return err
			}
			inner = fmt.Sprintf("%s\x00%v", path, key)
		}
		if err := s.value(inner, noted && open == '{'); err != nil {
			return err
		}
	}
	_, err := s.dec.Token()
	return err
}

func (e jsonEditor) find(content []byte, keys []string) (Scalar, bool, error) {
	if _, err := e.decode(content); err != nil {
		return Scalar{}, false, err
	}
	found, err := e.scan(content)
	if err != nil {
		return Scalar{}, false, err
	}
	v, ok := found["\x00"+strings.Join(keys, "\x00")]
	if !ok {
		return Scalar{}, false, nil
	}
	raw := string(content[v.start:v.end])
	s := Scalar{start: v.start, end: v.end, Text: raw, Null: raw == "null", Line: lineAt(content, v.start)}
	if v.object {
		return Scalar{}, false, &Error{strings.Join(keys, "."), s.Line, "an object; must be a single value"}
	}
	if strings.HasPrefix(raw, `"`) {
		if err := json.Unmarshal([]byte(raw), &s.Text); err != nil {
			return Scalar{}, false, err
		}
	}
	return s, true, nil
}

func (e jsonEditor) replacement(_ []byte, old Scalar, value string) (Edit, error) {
	return Edit{old.start, old.end, e.quoted(value)}, nil
}

// quoted returns a value in JSON's notation: unchanged if it is valid JSON, such as a
// number, a list or true, and otherwise as a string.
func (jsonEditor) quoted(value string) string {
	if json.Valid([]byte(value)) {
		return value
	}
	text, err := json.Marshal(value)
	if err != nil {
		return `""`
	}
	return string(text)
}

func (e jsonEditor) insertion(content []byte, keys []string, value string) (Edit, error) {
	found, err := e.scan(content)
	if err != nil {
		return Edit{}, err
	}
	met, path := 0, ""
	for _, key := range keys {
		v, ok := found[path+"\x00"+key]
		if !ok {
			break
		}
		path += "\x00" + key
		if met++; !v.object {
			return Edit{}, &Error{strings.Join(keys, "."), lineAt(content, v.start), key + " is not an object"}
		}
	}
	text := e.quoted(value)
	for i := len(keys) - 1; i > met; i-- {
		text = fmt.Sprintf("{%q: %s}", keys[i], text)
	}
	at := found[path].start + 1
	rest := content[at:]
	space := rest[:len(rest)-len(bytes.TrimLeft(rest, " \t\r\n"))]
	if bytes.HasPrefix(rest[len(space):], []byte("}")) {
		return Edit{at, at, fmt.Sprintf("%q: %s", keys[met], text)}, nil
	}
	return Edit{at, at, fmt.Sprintf("%s%q: %s,", space, keys[met], text)}, nil
}
