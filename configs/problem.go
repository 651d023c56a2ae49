package configs

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// ProblemError is one problem of a configuration. [Load] returns all problems at once,
// joined.
type ProblemError struct {
	Where string // "gpt.yaml:12", "--set", or the file alone
	Key   string // "batch.micro"; "" if the problem does not concern a single key
	Value string // as it was written; "" if there is none
	Text  string // what is wrong, what is allowed, what to do
}

func (p *ProblemError) Error() string {
	parts := []string{p.Where}
	if p.Key != "" {
		parts = append(parts, p.Key)
	}
	if p.Value != "" {
		parts = append(parts, p.Value)
	}
	return strings.Join(append(parts, p.Text), ": ")
}

// mostProblems is the largest number of problems that are reported, since nobody reads
// more. A file that is not a configuration at all may have thousands.
const mostProblems = 20

// joined returns the problems as one error, or nil if there are none.
func joined(problems []error) error {
	more := len(problems) - mostProblems
	if more <= 0 {
		return errors.Join(problems...)
	}
	return errors.Join(append(slices.Clip(problems[:mostProblems]), fmt.Errorf("and %s more", grouped(more)))...)
}

// grouped returns n in decimal, with a comma before each group of three digits, as in
// "1,234".
func grouped(n int) string {
	digits := strconv.Itoa(n)
	for at := len(digits) - 3; at > 0; at -= 3 {
		digits = digits[:at] + "," + digits[at:]
	}
	return digits
}

// longest is the largest number of characters of a value that are shown.
const longest = 60

// inline returns a node as text on one line, as it was written or nearly so, and
// shortened if it is long.
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
