package edit

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// tomlEditor edits TOML files. It understands tables, dotted keys and inline tables.
type tomlEditor struct{}

func (tomlEditor) decode(content []byte) (any, error) {
	var values map[string]any
	if err := toml.Unmarshal(content, &values); err != nil {
		return nil, err
	}
	if values == nil {
		values = map[string]any{}
	}
	return values, nil
}

func (e tomlEditor) find(content []byte, keys []string) (Scalar, bool, error) {
	if _, err := e.decode(content); err != nil {
		return Scalar{}, false, err
	}
	var p unstable.Parser
	p.Reset(content)
	var table []string
	for p.NextExpression() {
		n := p.Expression()
		switch n.Kind {
		case unstable.Table, unstable.ArrayTable:
			table = tomlKey(n)
			if n.Kind == unstable.ArrayTable {
				table = append(table, "[]") // no dotted key refers to an element of an array
			}
		case unstable.KeyValue:
			if s, ok, err := tomlValue(&p, n, table, keys); ok || err != nil {
				return s, ok, err
			}
		}
	}
	return Scalar{}, false, p.Error()
}

func tomlKey(n *unstable.Node) []string {
	var key []string
	for it := n.Key(); it.Next(); {
		key = append(key, string(it.Node().Data))
	}
	return key
}

// tomlValue returns the value of a key if n assigns it, directly or in an inline table;
// otherwise ok is false. table is the table that n is in.
func tomlValue(p *unstable.Parser, n *unstable.Node, table, keys []string) (s Scalar, ok bool, err error) {
	full := slices.Concat(table, tomlKey(n))
	value := n.Value()
	if value.Kind == unstable.InlineTable && len(full) < len(keys) && slices.Equal(full, keys[:len(full)]) {
		for it := value.Children(); it.Next() && !ok; {
			s, ok, err = tomlValue(p, it.Node(), full, keys)
		}
		return s, ok, err
	}
	if !slices.Equal(full, keys) {
		return Scalar{}, false, nil
	}
	switch value.Kind {
	case unstable.Integer, unstable.Float, unstable.Bool, unstable.String:
	default:
		return Scalar{}, false, &Error{strings.Join(keys, "."), 0, "not a number, a string or a boolean; only these can be changed"}
	}
	raw := value.Raw
	if raw.Length == 0 { // the parser leaves Raw empty for some values, such as booleans
		raw = p.Range(value.Data)
	}
	s = Scalar{start: int(raw.Offset), end: int(raw.Offset + raw.Length), Text: string(value.Data)}
	s.Line = lineAt(p.Data(), s.start)
	return s, true, nil
}

func (e tomlEditor) replacement(_ []byte, old Scalar, value string) (Edit, error) {
	return Edit{old.start, old.end, e.quoted(value)}, nil
}

// quoted returns a value in TOML's notation: unchanged if it is valid TOML, and otherwise
// as a string.
func (tomlEditor) quoted(value string) string {
	var v map[string]any
	if toml.Unmarshal([]byte("v = "+value), &v) == nil && !strings.Contains(value, "\n") {
		return value
	}
	return fmt.Sprintf("%q", value)
}

// insertion adds a key right below the header of its table or, if there is no such
// header, at the top of the file.
func (e tomlEditor) insertion(content []byte, keys []string, value string) (Edit, error) {
	line := keys[len(keys)-1] + " = " + e.quoted(value) + newline(content)
	var p unstable.Parser
	p.Reset(content)
	for p.NextExpression() {
		n := p.Expression()
		if n.Kind != unstable.Table || !slices.Equal(tomlKey(n), keys[:len(keys)-1]) {
			continue
		}
		it := n.Key()
		it.Next()
		at := int(it.Node().Raw.Offset)
		end := bytes.IndexByte(content[at:], '\n')
		if end < 0 {
			return Edit{len(content), len(content), newline(content) + line}, nil
		}
		return Edit{at + end + 1, at + end + 1, line}, nil
	}
	if err := p.Error(); err != nil {
		return Edit{}, errors.New("invalid TOML: " + err.Error())
	}
	return Edit{0, 0, strings.Join(keys, ".") + " = " + e.quoted(value) + newline(content)}, nil
}
