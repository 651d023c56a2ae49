package configs

import (
	"bytes"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// YAML returns the configuration as a file that [Load] reads, with every default filled
// in. Keys that have no meaning in this configuration are left out, and those that may hold secrets.
func (c *Config) YAML() ([]byte, error) {
	root := &yaml.Node{Kind: yaml.MappingNode}
	groups := map[string]*yaml.Node{"": root}
	for _, k := range keys {
		if !k.applies(c) || k.unset(c) || k.Secret {
			continue
		}
		group, key := "", k.Name
		if head, tail, ok := strings.Cut(k.Name, "."); ok {
			group, key = head, tail
		}
		if groups[group] == nil {
			groups[group] = &yaml.Node{Kind: yaml.MappingNode}
			root.Content = append(root.Content, plain(group), groups[group])
		}
		groups[group].Content = append(groups[group].Content, plain(key), k.value(c).node())
	}
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	if err := enc.Encode(root); err != nil {
		return nil, fmt.Errorf("write config: %w", err)
	}
	if err := enc.Close(); err != nil {
		return nil, fmt.Errorf("write config: %w", err)
	}
	return out.Bytes(), nil
}

// unset reports whether the key has no default and still has no value in c.
func (k Key) unset(c *Config) bool {
	return k.Default == "" && inline(k.value(c).node()) == inline(k.value(new(Config)).node())
}
