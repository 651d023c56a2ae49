package configs

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"headroom/memory"
)

// choice is a word from a fixed list.
type choice struct {
	p     *string
	words []string
}

func (v choice) set(n *yaml.Node) error {
	if err := scalar(n, "a word"); err != nil {
		return err
	}
	if !slices.Contains(v.words, n.Value) {
		return errors.New("not known")
	}
	*v.p = n.Value
	return nil
}

func (v choice) node() *yaml.Node { return plain(*v.p) }
func (v choice) allowed() string  { return list(v.words, "or") }

// subset is a list of words from a fixed list, each at most once, in any order.
type subset struct {
	p     *[]string
	words []string
}

func (v subset) set(n *yaml.Node) error {
	if n.Kind != yaml.SequenceNode {
		return errors.New("not a list")
	}
	chosen := []string{}
	for _, item := range n.Content {
		var word string
		if err := (choice{&word, v.words}).set(item); err != nil {
			return fmt.Errorf("%s: %w", inline(item), err)
		}
		if slices.Contains(chosen, word) {
			return fmt.Errorf("%q is given twice", word)
		}
		chosen = append(chosen, word)
	}
	*v.p = chosen
	return nil
}

func (v subset) node() *yaml.Node {
	n := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
	for _, word := range *v.p {
		n.Content = append(n.Content, plain(word))
	}
	return n
}

func (v subset) allowed() string { return "a list of " + list(v.words, "and") }

// squeezes is a list of mappings with the keys from, to and take.
type squeezes struct{ p *[]Squeeze }

func (v squeezes) set(n *yaml.Node) error {
	if n.Kind != yaml.SequenceNode {
		return errors.New("not a list")
	}
	var all []Squeeze
	for i, item := range n.Content {
		s, err := squeeze(item)
		if err != nil {
			return fmt.Errorf("item %d: %w", i+1, err)
		}
		all = append(all, s)
	}
	*v.p = all
	return nil
}

func squeeze(n *yaml.Node) (s Squeeze, err error) {
	if n.Kind != yaml.MappingNode {
		return s, errors.New("not a mapping")
	}
	fields := map[string]value{
		"from": whole[int]{p: &s.From, max: 1000 * million},
		"to":   whole[int]{p: &s.To, min: 1, max: 1000 * million},
		"take": size{p: &s.Take},
	}
	order := []string{"from", "to", "take"}
	for i := 0; i < len(n.Content); i += 2 {
		key, val := n.Content[i].Value, n.Content[i+1]
		field, ok := fields[key]
		if !ok {
			return s, fmt.Errorf("%q is not a known key, or is given twice", key)
		}
		if err := field.set(val); err != nil {
			return s, fmt.Errorf("%s: %s: %w", key, inline(val), err)
		}
		delete(fields, key)
	}
	for _, key := range order {
		if fields[key] != nil {
			return s, fmt.Errorf("%s is missing", key)
		}
	}
	if s.To <= s.From {
		return s, fmt.Errorf("to (%d) must be greater than from (%d)", s.To, s.From)
	}
	return s, nil
}

func (v squeezes) node() *yaml.Node {
	n := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
	for _, s := range *v.p {
		item := &yaml.Node{Kind: yaml.MappingNode, Style: yaml.FlowStyle}
		item.Content = append(item.Content,
			plain("from"), plain(strconv.Itoa(s.From)),
			plain("to"), plain(strconv.Itoa(s.To)),
			plain("take"), size{p: &s.Take}.node())
		n.Content = append(n.Content, item)
	}
	return n
}

func (v squeezes) allowed() string {
	return "a list of {from: steps, to: steps, take: size}, where \"to\" is greater than \"from\""
}

// Acts reports whether s takes its memory away once the given number of steps is
// finished.
func (s Squeeze) Acts(finished int) bool { return s.From <= finished && finished < s.To }

// Taken returns how much memory the squeezes take away in total once the given number
// of steps is finished.
func Taken(all []Squeeze, finished int) (sum memory.Bytes) {
	for _, s := range all {
		if s.Acts(finished) {
			sum += s.Take
		}
	}
	return sum
}

// list joins words as in a sentence, with last between the final two: "a, b or c".
func list(words []string, last string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	n := len(words) - 1
	return strings.Join(words[:n], ", ") + " " + last + " " + words[n]
}
