package configs

import (
	"errors"
	"fmt"
	"math"
	"path"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"headroom/memory"
)

// A value reads and writes one field of a [Config]. If set returns an error, it has
// changed nothing. The error says what is wrong, but names neither the key nor the
// value.
type value interface {
	set(*yaml.Node) error
	node() *yaml.Node
	allowed() string
}

// verbatim marks a value that --set takes literally. For example, data.glob=*.go then
// needs no quotes, although YAML would read *.go as an alias.
type verbatim interface{ verbatim() }

// scalar returns an error for a list, a mapping or a missing value. what names the
// value that was expected.
func scalar(n *yaml.Node, what string) error {
	switch {
	case n.Kind == yaml.SequenceNode:
		return fmt.Errorf("a list, not %s", what)
	case n.Kind == yaml.MappingNode:
		return fmt.Errorf("a mapping, not %s", what)
	case n.Kind != yaml.ScalarNode || n.Tag == "!!null":
		return fmt.Errorf("no value, expected %s", what)
	}
	return nil
}

// bare returns an error where scalar does, and also for a value in quotes, because that
// is text.
func bare(n *yaml.Node, what string) error {
	if n.Kind == yaml.ScalarNode && n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) != 0 {
		return fmt.Errorf("text, not %s", what)
	}
	return scalar(n, what)
}

func plain(text string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Value: text}
}

func quoted(text string) *yaml.Node {
	n := new(yaml.Node)
	n.SetString(text)
	return n
}

// whole is a whole number from min to max. zero, if not empty, is the word that means
// 0.
type whole[T int | uint64] struct {
	p        *T
	min, max T
	zero     string
}

func (v whole[T]) set(n *yaml.Node) error {
	if v.zero != "" && n.Kind == yaml.ScalarNode && n.Value == v.zero {
		*v.p = 0
		return nil
	}
	if err := bare(n, "a whole number"); err != nil {
		return err
	}
	i, err := strconv.ParseUint(strings.TrimPrefix(n.Value, "-"), 10, 64)
	switch {
	case errors.Is(err, strconv.ErrSyntax):
		return errors.New("not a whole number")
	case strings.HasPrefix(n.Value, "-") && i > 0, err != nil, i > uint64(v.max), i < uint64(v.min):
		return errors.New("out of range")
	}
	*v.p = T(i)
	return nil
}

func (v whole[T]) node() *yaml.Node {
	if *v.p == 0 && v.zero != "" {
		return plain(v.zero)
	}
	return plain(fmt.Sprint(*v.p))
}

func (v whole[T]) allowed() string {
	s := fmt.Sprintf("a whole number, %d to %d", v.min, v.max)
	if v.zero != "" {
		s = v.zero + ", or " + s
	}
	return s
}

// number is a real number. It must be at least 0, or above 0 if above is true. If below
// is not 0, the number must also be less than below.
type number struct {
	p     *float64
	above bool
	below float64
}

func (v number) set(n *yaml.Node) error {
	if err := bare(n, "a number"); err != nil {
		return err
	}
	f, err := strconv.ParseFloat(n.Value, 64)
	switch {
	case errors.Is(err, strconv.ErrSyntax), strings.ContainsAny(n.Value, "xXpP_"), math.IsNaN(f), err == nil && math.IsInf(f, 0):
		return errors.New("not a number")
	case err != nil, f < 0, v.above && f == 0, v.below > 0 && f >= v.below:
		return errors.New("out of range")
	}
	*v.p = f
	return nil
}

func (v number) node() *yaml.Node { return plain(strconv.FormatFloat(*v.p, 'g', -1, 64)) }

func (v number) allowed() string {
	s := "a number, at least 0"
	if v.above {
		s = "a number, above 0"
	}
	if v.below > 0 {
		s += " and below " + strconv.FormatFloat(v.below, 'f', -1, 64)
	}
	return s
}

// share is a fraction, written as 8% or 0.08; most is the largest percentage allowed.
type share struct {
	p    *float64
	most float64
}

func (v share) set(n *yaml.Node) error {
	if err := scalar(n, "a percentage"); err != nil {
		return err
	}
	digits, percent := strings.CutSuffix(n.Value, "%")
	f := number{p: new(float64)}
	if err := f.set(plain(strings.TrimSpace(digits))); err != nil {
		return err
	}
	if percent {
		*f.p /= 100
	}
	if *f.p > v.most/100 {
		return errors.New("out of range")
	}
	*v.p = *f.p
	return nil
}

func (v share) node() *yaml.Node {
	percent := strconv.FormatFloat(*v.p*100, 'g', 12, 64)
	if f, err := strconv.ParseFloat(percent, 64); err == nil && f/100 == *v.p {
		return plain(percent + "%")
	}
	return number{p: v.p}.node()
}

func (v share) allowed() string { return fmt.Sprintf("0%% to %g%%", v.most) }

// size is an amount of memory of at least one byte. zero, if not empty, is the word
// that means 0.
type size struct {
	p    *memory.Bytes
	zero string
}

func (v size) set(n *yaml.Node) error {
	if err := scalar(n, "a size"); err != nil {
		return err
	}
	if v.zero != "" && n.Value == v.zero {
		*v.p = 0
		return nil
	}
	b, err := memory.Parse(n.Value)
	if err != nil {
		return errors.New("not a size")
	}
	if b < 1 {
		return errors.New("out of range")
	}
	*v.p = b
	return nil
}

func (v size) node() *yaml.Node {
	if *v.p == 0 && v.zero != "" {
		return plain(v.zero)
	}
	b, _ := v.p.MarshalText() // never fails
	return plain(string(b))
}

func (v size) allowed() string {
	s := "a size of at least 1B with its unit, such as 512MiB or 24GiB"
	if v.zero != "" {
		s = v.zero + ", or " + s
	}
	return s
}

// boolean is true or false.
type boolean struct{ p *bool }

func (v boolean) set(n *yaml.Node) error {
	if err := bare(n, "true or false"); err != nil {
		return err
	}
	if n.Value != "true" && n.Value != "false" {
		return errors.New("neither true nor false")
	}
	*v.p = n.Value == "true"
	return nil
}

func (v boolean) node() *yaml.Node { return plain(strconv.FormatBool(*v.p)) }

func (v boolean) allowed() string { return "true or false" }

// text is any text that is not empty.
type text struct{ p *string }

func (v text) set(n *yaml.Node) error {
	if err := scalar(n, "text"); err != nil {
		return err
	}
	if n.Value == "" {
		return errors.New("empty")
	}
	if strings.ContainsFunc(n.Value, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return errors.New("has a control character")
	}
	*v.p = n.Value
	return nil
}

func (v text) node() *yaml.Node { return quoted(*v.p) }
func (v text) allowed() string  { return "text" }
func (v text) verbatim()        {}

// glob is a pattern for the names of files.
type glob struct{ p *string }

func (v glob) set(n *yaml.Node) error {
	var s string
	if err := (text{&s}).set(n); err != nil {
		return err
	}
	if _, err := path.Match(s, ""); err != nil {
		return errors.New("not a pattern")
	}
	if strings.Contains(s, "/") {
		return errors.New("is matched against names, which have no /")
	}
	*v.p = s
	return nil
}

func (v glob) node() *yaml.Node { return quoted(*v.p) }
func (v glob) allowed() string  { return "a pattern for names, as in *.go" }
func (v glob) verbatim()        {}

// inNames lists the characters that are allowed in a folder's name on any system.
// IsName does not use a regular expression: compiling one took longer than everything
// else that the program does when it starts.
const inNames = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"

// IsName reports whether s may name a run and its folder.
func IsName(s string) bool {
	return s != "" && len(s) <= 100 && s[0] != '.' && s[0] != '-' && strings.Trim(s, inNames) == ""
}

// NamesAllowed describes the names that [IsName] accepts.
const NamesAllowed = "1 to 100 letters, digits, dots, dashes and underscores, not starting with . or -"

// name is the name of a run.
type name struct{ p *string }

func (v name) set(n *yaml.Node) error {
	if err := scalar(n, "text"); err != nil {
		return err
	}
	if !IsName(n.Value) {
		return errors.New("not a valid name for a folder")
	}
	*v.p = n.Value
	return nil
}

func (v name) node() *yaml.Node { return quoted(*v.p) }

func (v name) allowed() string { return NamesAllowed }
func (v name) verbatim()       {}
