package configs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"headroom/spelling"
)

// maxFile is the size in bytes of the largest file that is read, far above the size of
// any configuration. It keeps a huge file, given by mistake, from filling the memory.
const maxFile = 1 << 20

// Load reads the configuration at path, or the preset of that name, and then applies the
// overrides in sets. Each override is "key=value" with the value in YAML; text needs no
// quotes. If a key is overridden twice, the last override wins. The keys in unset are
// removed from the file, so that they have their defaults.
//
// All problems are reported at once: the error joins a [*ProblemError] for each of the
// first [mostProblems] problems and says how many more there are. A file that cannot be
// read gives a different error, which wraps the cause if the system reported one.
func Load(path string, sets []string, unset ...string) (*Config, error) {
	content, where, err := read(path)
	if err != nil {
		return nil, err
	}
	return parse(content, where, sets, unset...)
}

// Text returns the file at path, or the preset of that name, as it was written, with
// its comments. It does not check the content. Its errors are those of [Load] for a
// file that cannot be read.
func Text(path string) ([]byte, error) {
	content, _, err := read(path)
	return content, err
}

// read returns the content of the file or the preset, and the name that messages use
// for it. A file takes precedence over a preset of the same name, because it is the
// user's own.
func read(path string) (content []byte, where string, err error) {
	info, err := os.Stat(path)
	if preset, known := presetText(path); known && (err != nil || info.IsDir()) {
		return preset, path + ".yaml", nil
	}
	if err != nil {
		hint := fmt.Sprintf("; presets: %s", strings.Join(Presets(), ", "))
		if best := spelling.Nearest(path, Presets()); best != "" {
			hint = fmt.Sprintf("; did you mean the preset %s?", best)
		}
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%s is neither a file nor a preset (%w)", path, fs.ErrNotExist)
		}
		return nil, "", fmt.Errorf("read config: %w%s", err, hint)
	}
	if !info.Mode().IsRegular() {
		return nil, "", fmt.Errorf("read config: %s: not a file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, "", fmt.Errorf("read config: %w", err)
	}
	content, err = io.ReadAll(io.LimitReader(f, maxFile+1))
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, "", fmt.Errorf("read config: %w", err)
	}
	if len(content) > maxFile {
		return nil, "", fmt.Errorf("read config: %s: larger than %d bytes: not a configuration", path, maxFile)
	}
	return content, path, nil
}

// loader collects a configuration and the problems found in it.
type loader struct {
	c        *Config
	where    string            // name of the file
	origins  map[string]string // where each key was given, if it was
	bad      map[string]bool   // keys whose value was refused
	unset    map[string]bool   // keys that are taken out of the file
	problems []error
}

func parse(content []byte, where string, sets []string, unset ...string) (*Config, error) {
	l := &loader{c: new(Config), where: where, origins: map[string]string{}, bad: map[string]bool{}, unset: map[string]bool{}}
	l.defaults()
	for _, key := range unset {
		l.takeOut(key, sets)
	}
	l.file(bytes.TrimPrefix(content, []byte("\ufeff")))
	for _, s := range sets {
		l.override(s)
	}
	if _, given := l.origins["output.dir"]; !given {
		l.c.Output.Dir = RunsDir()
	}
	l.name()
	l.check()
	if err := joined(l.problems); err != nil {
		return nil, err
	}
	return l.c, nil
}

func (l *loader) defaults() {
	for _, k := range keys {
		if k.Default == "" {
			continue
		}
		v := k.value(l.c)
		n, err := alone(v, k.Default)
		if err == nil {
			err = v.set(n)
		}
		if err != nil {
			panic(fmt.Sprintf("configs: default of %s: %v", k.Name, err))
		}
	}
}

// name takes the name of a run from the name of its file, unless the configuration
// gives one.
func (l *loader) name() {
	base := strings.TrimSuffix(filepath.Base(l.where), filepath.Ext(l.where))
	if l.c.Name == "" && !l.bad["name"] {
		v := name{&l.c.Name}
		if err := v.set(quoted(base)); err != nil {
			l.add(l.where, "name", base, fmt.Sprintf("the file's name is %v; set the key name; allowed: %s", err, v.allowed()))
		}
	}
}

func (l *loader) add(where, key, value, text string) {
	l.problems = append(l.problems, &ProblemError{Where: where, Key: key, Value: value, Text: text})
	l.bad[key] = true
}

// at returns where a key was given, or the file's name if the key was not given.
func (l *loader) at(key string) string {
	if where, ok := l.origins[key]; ok {
		return where
	}
	return l.where
}

// find returns the key with the given name, and whether there is one.
func find(name string) (Key, bool) {
	for _, k := range keys {
		if k.Name == name {
			return k, true
		}
	}
	return Key{}, false
}

// keyNames returns the names of all keys.
func keyNames() []string {
	all := make([]string, len(keys))
	for i, k := range keys {
		all[i] = k.Name
	}
	return all
}

// members returns the last parts of the names of a group's keys, or nil if there is no
// such group. The members of "" are the groups and the keys outside all groups.
func members(group string) []string {
	var parts []string
	for _, k := range keys {
		head, tail, grouped := strings.Cut(k.Name, ".")
		if group == "" && (len(parts) == 0 || parts[len(parts)-1] != head) {
			parts = append(parts, head)
		} else if grouped && head == group {
			parts = append(parts, tail)
		}
	}
	return parts
}

// unknown returns the message about a key that does not exist.
func unknown(name string) string {
	group, _, grouped := strings.Cut(name, ".")
	candidates := keyNames()
	if !grouped {
		candidates = append(candidates, members("")...)
	}
	if best := spelling.NearestKey(name, candidates); best != "" {
		return fmt.Sprintf("unknown key; did you mean %s?", best)
	}
	if keys := members(group); grouped && keys != nil {
		return fmt.Sprintf("unknown key; %s has %s", group, list(keys, "and"))
	}
	return fmt.Sprintf("unknown key; the known keys are %s", list(members(""), "and"))
}
