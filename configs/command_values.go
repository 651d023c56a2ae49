package configs

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"go.yaml.in/yaml/v3"

	"headroom/memory"
)

// words is a list of words. It is not empty, and its first word is not empty.
type words struct {
	p    *[]string
	what string // what the list holds, with an example
}

func (v words) set(n *yaml.Node) error {
	if n.Kind != yaml.SequenceNode {
		return errors.New("not a list")
	}
	var all []string
	for _, item := range n.Content {
		if err := scalar(item, "a word"); err != nil {
			return fmt.Errorf("line %d: %w", item.Line, err)
		}
		if strings.ContainsRune(item.Value, 0) {
			return fmt.Errorf("line %d: has a zero byte", item.Line)
		}
		all = append(all, item.Value)
	}
	if len(all) == 0 || all[0] == "" {
		return errors.New("empty")
	}
	*v.p = all
	return nil
}

func (v words) node() *yaml.Node {
	n := &yaml.Node{Kind: yaml.SequenceNode}
	for _, word := range *v.p {
		node := quoted(word)
		if strings.ContainsFunc(word, func(r rune) bool { return !unicode.IsGraphic(r) }) {
			node.Style = yaml.DoubleQuotedStyle // as a block of lines, some words would not be read back unchanged
		}
		n.Content = append(n.Content, node)
	}
	return n
}

func (v words) allowed() string { return "a list of " + v.what }

// receivers is a list of who is told what becomes of a run. One alone need be no list.
type receivers struct{ p *[]string }

func (v receivers) set(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode {
		n = &yaml.Node{Kind: yaml.SequenceNode, Content: []*yaml.Node{n}}
	}
	return words{p: v.p}.set(n)
}

func (v receivers) node() *yaml.Node { return words{p: v.p}.node() }

func (v receivers) allowed() string { return "commands and URLs, as in [ntfy://TOPIC]" }

// settings is a mapping from names to strings, held as a list of "name=string".
type settings struct{ p *[]string }

func (v settings) set(n *yaml.Node) error {
	if n.Kind != yaml.MappingNode {
		return errors.New("not a mapping")
	}
	var all []string
	seen := map[string]bool{}
	for i := 0; i < len(n.Content); i += 2 {
		key, val := n.Content[i].Value, n.Content[i+1]
		var s string
		if err := (text{&s}).set(val); err != nil {
			return fmt.Errorf("%s on line %d: %w", key, val.Line, err)
		}
		if seen[key] {
			return fmt.Errorf("%s: given twice", key)
		}
		seen[key] = true
		all = append(all, key+"="+s)
	}
	*v.p = all
	return nil
}

func (v settings) node() *yaml.Node {
	n := &yaml.Node{Kind: yaml.MappingNode}
	for _, s := range *v.p {
		key, val, _ := strings.Cut(s, "=")
		n.Content = append(n.Content, quoted(key), quoted(val))
	}
	return n
}

func (v settings) allowed() string { return "names and values, as in {micro: --batch-size}" }

// limit is an amount of memory that may be used. "off" is 0, and nil means that none is given.
type limit struct{ p **memory.Bytes }

func (v limit) set(n *yaml.Node) error {
	var b memory.Bytes
	if err := (size{&b, "off"}).set(n); err != nil {
		return err
	}
	*v.p = &b
	return nil
}

func (v limit) node() *yaml.Node {
	if *v.p == nil {
		return plain("")
	}
	return size{*v.p, "off"}.node()
}

func (v limit) allowed() string { return size{zero: "off"}.allowed() }

// duration is a length of time. zero is the word that means 0.
type duration struct {
	p    *time.Duration
	zero string
}

func (v duration) set(n *yaml.Node) error {
	if err := scalar(n, "a time"); err != nil {
		return err
	}
	d, err := time.ParseDuration(n.Value)
	switch {
	case n.Value == v.zero:
		d = 0
	case err != nil:
		return errors.New("not a time")
	case d < 0:
		return errors.New("out of range")
	}
	*v.p = d
	return nil
}

func (v duration) node() *yaml.Node {
	if *v.p == 0 {
		return plain(v.zero)
	}
	return plain(v.p.String())
}

func (v duration) allowed() string { return v.zero + ", or a time with its unit, such as 90s or 30m" }
