package configs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"
)

// file reads every key of a file into the configuration.
func (l *loader) file(content []byte) {
	if root := l.document(content); root != nil {
		l.group("", root)
	}
}

// document parses the content of a file and returns its root. If the content cannot be
// parsed, or is not allowed, document records why and returns nil.
func (l *loader) document(content []byte) *yaml.Node {
	var doc, second yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(content))
	err := dec.Decode(&doc)
	switch {
	case errors.Is(err, io.EOF) || err == nil && empty(&doc):
		l.add(l.where, "", "", "the file is empty; start from a preset: "+list(Presets(), "or"))
		return nil
	case err != nil:
		l.syntax(err)
		return nil
	}
	if !errors.Is(dec.Decode(&second), io.EOF) {
		l.add(l.where, "", "", "more than one document, or text after the end of the first; a configuration is a single document")
		return nil
	}
	if root := doc.Content[0]; l.simple(root) {
		return root
	}
	return nil
}

func empty(doc *yaml.Node) bool {
	return len(doc.Content) == 0 || doc.Content[0].Kind == yaml.ScalarNode && doc.Content[0].Tag == "!!null"
}

// yamlError matches the parser's errors: "yaml: line 3: what", "yaml: what".
var yamlError = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)$`) })

func (l *loader) syntax(err error) {
	where, text := l.where, err.Error()
	if m := yamlError().FindStringSubmatch(text); m != nil {
		text = m[2]
		if m[1] != "" {
			where += ":" + m[1]
		}
	}
	if strings.Contains(text, "cannot start any token") {
		text += "; indent with spaces, not tabs, and quote values that begin with %, @ or `"
	}
	l.add(where, "", "", "invalid YAML: "+text)
}

// simple refuses anchors, aliases and tags, because they make a configuration mean
// something other than what it appears to mean. It reports whether n is free of them.
func (l *loader) simple(n *yaml.Node) bool {
	ok := true
	refuse := func(what string) {
		ok = false
		l.add(l.line(n), "", "", what)
	}
	switch {
	case n.Kind == yaml.AliasNode:
		refuse(fmt.Sprintf("alias *%s: not allowed, write the value; text that begins with * needs quotes", n.Value))
	case n.Anchor != "":
		refuse(fmt.Sprintf("anchor &%s: not allowed; text that begins with & needs quotes", n.Anchor))
	case n.Style&yaml.TaggedStyle != 0:
		refuse(fmt.Sprintf("tag %s: not allowed; text that begins with ! needs quotes", n.Tag))
	}
	for _, child := range n.Content {
		ok = l.simple(child) && ok
	}
	return ok
}

func (l *loader) line(n *yaml.Node) string { return fmt.Sprintf("%s:%d", l.where, n.Line) }

// group reads the mapping n, which holds the keys of the named group, or those of the
// top level if the name is "".
func (l *loader) group(group string, n *yaml.Node) {
	if n.Kind != yaml.MappingNode {
		text := "not a mapping; write keys and values, as in seed: 1"
		if group != "" {
			text = fmt.Sprintf("not a mapping; write keys under it: %s", list(members(group), "and"))
		}
		l.add(l.line(n), group, inline(n), text)
		return
	}
	lines := map[string]int{}
	for i := 0; i < len(n.Content); i += 2 {
		key, val := n.Content[i], n.Content[i+1]
		full := strings.TrimPrefix(group+"."+key.Value, ".")
		_, known := find(full)
		first, twice := lines[key.Value]
		lines[key.Value] = key.Line
		switch {
		case key.Kind != yaml.ScalarNode:
			l.add(l.line(key), group, inline(key), "not a key")
		case twice:
			l.add(l.line(key), full, inline(val), fmt.Sprintf("given twice, first on line %d", first))
		case group == "" && strings.Contains(key.Value, ".") && known:
			head, tail, _ := strings.Cut(full, ".")
			l.add(l.line(key), full, inline(val), fmt.Sprintf("write %s under %s", tail, head))
		case known && l.unset[full]:
		case known:
			l.set(full, val, l.line(key))
		case group == "" && members(full) != nil:
			l.group(full, val)
		default:
			l.add(l.line(key), full, inline(val), unknown(full))
		}
	}
}

// set sets one key to the value in n, which was given at where.
func (l *loader) set(name string, n *yaml.Node, where string) {
	k, _ := find(name)
	v := k.value(l.c)
	l.origins[name] = where
	if err := v.set(n); err != nil {
		l.add(where, name, inline(n), fmt.Sprintf("%v; allowed: %s", err, v.allowed()))
	}
}

// takeOut records one key that is to be removed from the file.
func (l *loader) takeOut(key string, sets []string) {
	const where = "--unset"
	_, known := find(key)
	switch {
	case !known && members(key) != nil:
		l.add(where, key, "", "a group; unset one of "+list(members(key), "and"))
	case !known:
		l.add(where, key, "", unknown(key))
	case slices.ContainsFunc(sets, func(s string) bool { return strings.HasPrefix(s, key+"=") }):
		l.add(where, key, "", "also set by --set; leave one out")
	}
	l.unset[key] = true
}

// override reads one "key=value" and sets the key.
func (l *loader) override(text string) {
	const where = "--set"
	key, raw, ok := strings.Cut(text, "=")
	key = strings.TrimSpace(key)
	k, known := find(key)
	switch {
	case !ok || key == "":
		l.add(where, "", text, "must be key=value, as in --set batch.micro=auto")
		return
	case !known && members(key) != nil:
		l.add(where, key, raw, "a group; set one of "+list(members(key), "and"))
		return
	case !known:
		l.add(where, key, raw, unknown(key))
		return
	}
	n, err := alone(k.value(l.c), raw)
	if err != nil {
		l.add(where, key, raw, fmt.Sprintf("invalid YAML: %v; allowed: %s", err, k.Allowed()))
		return
	}
	l.set(key, n, where)
}

// alone parses a value that is given outside a file, such as an override, and returns
// its node. The text is parsed as YAML, unless v is [verbatim].
func alone(v value, text string) (*yaml.Node, error) {
	if _, is := v.(verbatim); is {
		return quoted(text), nil
	}
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
		return nil, errors.New(strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if len(doc.Content) == 0 {
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null"}, nil
	}
	return doc.Content[0], nil
}
