package edit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// yamlEditor edits a file that holds one YAML document. It follows merge keys and aliases
// when it reads a value, but edits only where the key itself is written.
type yamlEditor struct{}

func (yamlEditor) decode(content []byte) (any, error) {
	dec := yaml.NewDecoder(bytes.NewReader(content))
	var values, second any
	if err := dec.Decode(&values); err != nil && !errors.Is(err, io.EOF) {
		return nil, errors.New(strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if err := dec.Decode(&second); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one document")
	}
	if _, ok := values.(map[string]any); !ok {
		return nil, errNotMapping
	}
	return values, nil
}

// walk follows the keys down from the top of the document for as long as mappings contain
// them. It returns the node that it has reached, and how many keys led there.
func (yamlEditor) walk(content []byte, keys []string) (n *yaml.Node, met int, err error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(content, &doc); err != nil || len(doc.Content) == 0 {
		return nil, 0, errNotMapping
	}
	n = doc.Content[0]
	for _, key := range keys {
		next := member(n, key)
		if next == nil {
			break
		}
		n = next
		met++
	}
	return n, met, nil
}

// member returns the value of a key that the mapping n itself contains, or nil. It
// ignores merge keys.
func member(n *yaml.Node, key string) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}

func (e yamlEditor) find(content []byte, keys []string) (Scalar, bool, error) {
	values, err := e.decode(content)
	if err != nil {
		return Scalar{}, false, err
	}
	value, ok := lookup(values, keys)
	if !ok {
		return Scalar{}, false, nil
	}
	n, met, err := e.walk(content, keys)
	if err != nil {
		return Scalar{}, false, err
	}
	if met < len(keys) { // it comes from a merge key
		return Scalar{Text: fmt.Sprint(value), Null: value == nil}, true, nil
	}
	s := Scalar{Line: n.Line, Text: n.Value, Null: value == nil}
	raw := n.Value
	if n.Kind == yaml.AliasNode {
		raw, s.Text = "*"+n.Value, n.Alias.Value
		n = &yaml.Node{Kind: yaml.ScalarNode, Line: n.Line, Column: n.Column, Tag: n.Alias.Tag}
	}
	if n.Kind == yaml.SequenceNode {
		return e.list(content, n, s)
	}
	if n.Kind != yaml.ScalarNode {
		return Scalar{}, false, &Error{strings.Join(keys, "."), n.Line, "a mapping; must be a single value"}
	}
	s.start = e.offset(content, n)
	if end, ok := rawScalar(content, s.start, raw); ok {
		s.end = end
	} else if s.Null && s.start <= len(content) {
		s.end = s.start // "key:" with nothing after it
	}
	return s, true, nil
}

// list returns s with its text and position set to those of the list n, which must be
// written in brackets. For a list written with dashes it returns an error.
func (e yamlEditor) list(content []byte, n *yaml.Node, s Scalar) (Scalar, bool, error) {
	s.start = e.offset(content, n)
	if n.Style&yaml.FlowStyle == 0 || s.start >= len(content) {
		return Scalar{}, false, &Error{"", n.Line, "a list written with dashes cannot be changed; write it in brackets"}
	}
	length := bytes.IndexByte(content[s.start:], ']')
	if length < 0 {
		return Scalar{}, false, &Error{"", n.Line, "an unterminated list"}
	}
	s.end = s.start + length + 1
	s.Text = string(content[s.start:s.end])
	return s, true, nil
}

// properties matches the anchor and the tag in front of a value.
var properties = regexp.MustCompile(`^(?:[&!][^\s,\]}]*[ \t]+)+`)

// offset returns the position of the byte at which a node's value begins, after its
// anchor and tag. The parser's columns count characters, not bytes.
func (yamlEditor) offset(content []byte, n *yaml.Node) int {
	at := 0
	for range n.Line - 1 {
		next := bytes.IndexByte(content[at:], '\n')
		if next < 0 {
			return len(content) + 1
		}
		at += next + 1
	}
	if at == 0 && bytes.HasPrefix(content, []byte("\ufeff")) {
		at = len("\ufeff")
	}
	for range n.Column - 1 {
		_, size := utf8.DecodeRune(content[at:])
		at += size
	}
	return at + len(properties.Find(content[at:]))
}

func (e yamlEditor) replacement(content []byte, old Scalar, value string) (Edit, error) {
	edit := Edit{old.start, old.end, value}
	if old.start == old.end && old.start > 0 && content[old.start-1] == ':' {
		edit.New = " " + value
	}
	return edit, nil
}

func (e yamlEditor) insertion(content []byte, keys []string, value string) (Edit, error) {
	n, met, err := e.walk(content, keys)
	if err != nil {
		return Edit{}, err
	}
	key := strings.Join(keys, ".")
	switch {
	case n.Kind != yaml.MappingNode || met == len(keys):
		return Edit{}, &Error{key, n.Line, "it comes from somewhere else in the file, and cannot be changed here"}
	case n.Style&yaml.FlowStyle != 0:
		at := e.offset(content, n) + 1
		comma := ", "
		if len(n.Content) == 0 {
			comma = ""
		}
		open := strings.Join(keys[met:], ": {")
		return Edit{at, at, open + ": " + value + strings.Repeat("}", len(keys)-met-1) + comma}, nil
	case len(n.Content) == 0:
		return Edit{}, &Error{key, n.Line, "there is no line to add it to"}
	}
	first := n.Content[0]
	start := e.offset(content, &yaml.Node{Line: first.Line, Column: 1})
	indent := content[start:min(len(content), start+first.Column-1)]
	if len(bytes.TrimLeft(indent, " ")) > 0 {
		return Edit{}, &Error{key, first.Line, "the mapping does not begin on a line of its own, so the key cannot be added here"}
	}
	var b strings.Builder
	for depth, k := range keys[met:] {
		b.WriteString(string(indent) + strings.Repeat("  ", depth) + k + ":")
		if depth == len(keys)-met-1 {
			b.WriteString(" " + value)
		}
		b.WriteString(newline(content))
	}
	return Edit{start, start, b.String()}, nil
}
