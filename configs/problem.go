package configs

import (
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Problem is one thing wrong with a configuration. [Load] returns all of them
// at once, joined.
type Problem struct {
	Where string // "gpt.yaml:12", "--set", or the file alone
	Key   string // "batch.micro"; "" if the problem is not of one key
	Value string // as it was written; "" if there is none
	Text  string // what is wrong, what is allowed, what to do
}

func (p *Problem) Error() string {
	parts := []string{p.Where}
	if p.Key != "" {
		parts = append(parts, p.Key)
	}
	if p.Value != "" {
		parts = append(parts, p.Value)
	}
	return strings.Join(append(parts, p.Text), ": ")
}

// longest is how much of a value is shown.
const longest = 60

// inline is a node on one line, as it was written or nearly so.
func inline(n *yaml.Node) string {
	s := n.Value
	switch n.Kind {
	case yaml.ScalarNode:
		if n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) != 0 ||
			strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			s = fmt.Sprintf("%q", s)
		}
	case yaml.SequenceNode:
		s = "[" + strings.Join(inlines(n.Content), ", ") + "]"
	case yaml.MappingNode:
		parts := inlines(n.Content)
		pairs := make([]string, len(parts)/2)
		for i := range pairs {
			pairs[i] = parts[2*i] + ": " + parts[2*i+1]
		}
		s = "{" + strings.Join(pairs, ", ") + "}"
	}
	if runes := []rune(s); len(runes) > longest {
		s = string(runes[:longest-1]) + "…"
	}
	return s
}

func inlines(nodes []*yaml.Node) []string {
	texts := make([]string, len(nodes))
	for i, n := range nodes {
		texts[i] = inline(n)
	}
	return texts
}
