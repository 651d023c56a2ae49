package configs

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"headroom/memory"
	"headroom/spelling"
)

// Command is the user's own training command with its settings. It is kept in a file,
// so that the settings need not be given at every start. The run.yaml of a command's
// run has the same format.
type Command struct {
	Args    []string
	Dir     string   // absolute path of the folder in which it runs
	Name    string   // name of the run; "" names the run after the script
	Profile string   // a name, or the path of a file; a path has a slash or a dot
	Knobs   []string // each as in "micro=--batch-size"
	World   int      // data-parallel ranks; 0 if the command says how many
	Trust   bool

	Free        memory.Bytes  // memory that every GPU of the command must have free before the start; 0 means no waiting
	Hang        time.Duration // time without a sign of life after which the command is reported as hung; 0 for never
	RestartHung bool
	// RestartLeaking is whether to restart a command that leaks memory. Whenever the
	// command has saved a checkpoint and memory would run out before the next one, the
	// command is ended and started again from the saved checkpoint.
	RestartLeaking bool
	WatchOnly      bool // never change the command, and never start it again
	Observe        bool // the worker inside PyTorch only watches
	NoWorker       bool // nothing is put inside the command's processes
	// Spill is how much of the host's memory a process of the command may use for what does
	// not fit on its GPU; 0 is none, and nil means half of what the host has free.
	Spill *memory.Bytes
	// Micro is how many rows the worker runs at once at most: a number, "auto" to find it first, or "" for as many as fit.
	Micro    string
	Snapshot bool     // PyTorch's snapshot of its memory is written into the run's folder at the first failure
	Allow    []string // names of the profile's fallbacks that are allowed although the training is then not bit-for-bit the same
	// Trackers are those whose open run the next attempt continues, separated by a comma; "off" for none, "" for the default.
	Trackers string
	Notify   []string // who is told what becomes of the run: commands, URLs and @FILEs

	origins map[string]string
}

// Auto is the value of [Command.Micro] for a number that is to be found.
const Auto = "auto"

// IsMicro reports whether text is a value of [Command.Micro].
func IsMicro(text string) bool {
	n, err := strconv.Atoi(text)
	return text == Auto || err == nil && n >= 1 && n <= 1<<30 && strconv.Itoa(n) == text
}

// MicroAllowed says what the values of [Command.Micro] are.
const MicroAllowed = "auto, or a whole number, at least 1"

// rowsAtOnce is a value of [Command.Micro].
type rowsAtOnce struct{ p *string }

func (v rowsAtOnce) set(n *yaml.Node) error {
	if err := scalar(n, "a number"); err != nil {
		return err
	}
	if !IsMicro(n.Value) {
		return errors.New("not one of them")
	}
	*v.p = n.Value
	return nil
}

func (v rowsAtOnce) node() *yaml.Node { return plain(*v.p) }
func (v rowsAtOnce) allowed() string  { return MicroAllowed }

// Trackers are the values of [Command.Trackers].
var Trackers = []string{"wandb", "mlflow", "wandb,mlflow", "off"}

// DefaultHang is the value of [Command.Hang] unless another is given.
const DefaultHang = 30 * time.Minute

// commandKey is a key of a command's file.
type commandKey struct {
	name, means, example string
	value                func(*Command) value
}

// commandKeys lists the keys of a command's file in the order in which they are
// written.
var commandKeys = []commandKey{
	{"command", "The command, one word per item. No shell reads it: $VARIABLE, ~ and * are\nnot expanded.", "[python, train.py]",
		func(c *Command) value { return words{&c.Args, "words, as in [python, train.py]"} }},
	{"dir", "Where the command runs, relative to the folder of this file.", ".",
		func(c *Command) value { return text{&c.Dir} }},
	{"name", "The run is kept in runs/NAME; if not given, it is named after the script.", "train-run",
		func(c *Command) value { return name{&c.Name} }},
	{"profile", `How to read the command: a profile listed by "headroom profiles", or a file with one.`, "transformers",
		func(c *Command) value { return text{&c.Profile} }},
	{"knobs", "Where the command takes its quantities from, if no profile says: a flag, $VARIABLE or a key\nof its configuration. The knobs checkpoints and resume say how the command continues.", "{micro: --batch-size, accumulation: --accum}",
		func(c *Command) value { return settings{&c.Knobs} }},
	{"world", "Number of data-parallel ranks, if the command does not say.", "2",
		func(c *Command) value { return whole[int]{p: &c.World, min: 1, max: 1 << 20} }},
	{"trust", "Whether to assume what headroom cannot prove about the command. If not, a change that\nneeds such an assumption is not made.", "false",
		func(c *Command) value { return boolean{&c.Trust} }},
	{"free", "Start only once every GPU of the command has this much memory free.", "60GiB",
		func(c *Command) value { return size{p: &c.Free, zero: "0"} }},
	{"hang", "How long without output, GPU work or a new checkpoint before headroom warns that the\ncommand may be hanging. \"never\" turns this off.", "30m",
		func(c *Command) value { return duration{p: &c.Hang, zero: "never"} }},
	{"restart_hung", "Whether a command that hangs is ended, and started again from its newest checkpoint.", "false",
		func(c *Command) value { return boolean{&c.RestartHung} }},
	{"restart_leaking", "Whether to end a leaking command just after it has saved a checkpoint, if it would run\nout of memory before the next one, and to restart it from that checkpoint.", "false",
		func(c *Command) value { return boolean{&c.RestartLeaking} }},
	{"watch_only", "Whether to only watch the command: it is then neither changed nor started again.", "false",
		func(c *Command) value { return boolean{&c.WatchOnly} }},
	{"observe", "Whether the worker inside PyTorch only watches: a step that runs out of memory is then\nnot finished in place.", "false",
		func(c *Command) value { return boolean{&c.Observe} }},
	{"no_worker", "Whether to keep headroom out of the command's processes entirely.", "false",
		func(c *Command) value { return boolean{&c.NoWorker} }},
	{"spill", "How much of the host's memory a PyTorch process may use for what does not fit on its GPU,\nor \"off\". If not given, half of what the host has free.", "64GiB",
		func(c *Command) value { return limit{&c.Spill} }},
	{"micro", "How many rows of a batch are run at once at most: a number, or \"auto\" to find the largest that\nfits before the command is started.", "auto",
		func(c *Command) value { return rowsAtOnce{&c.Micro} }},
	{"snapshot", "Whether to write PyTorch's own snapshot of a GPU's memory into the run's folder when memory\nfirst runs out: snapshot.pickle, for pytorch.org/memory_viz.", "false",
		func(c *Command) value { return boolean{&c.Snapshot} }},
	{"allow", "Fallbacks of the profile to allow even though training is then not bit-for-bit the same,\nsuch as recompute.", "[recompute, no-workers]",
		func(c *Command) value { return words{&c.Allow, "names, as in [recompute]"} }},
	{"trackers", "Trackers of experiments in which a command that is started again continues the run that it had\nopen: wandb if not given. docs/notifications.md says when.", "wandb",
		func(c *Command) value { return choice{&c.Trackers, Trackers} }},
	{"notify", "Who is told when the run ends, first survives a failure, leaks or spills: commands, URLs, and\n@FILE with one in each line. docs/notifications.md says how.", "[ntfy://TOPIC]",
		func(c *Command) value { return receivers{&c.Notify} }},
}

// IsCommand reports whether the file at path is, or is meant to be, the file of a
// command: it has the key command, or a key spelt almost like it. A file that cannot be
// read is not one.
func IsCommand(path string) bool {
	content, _, err := read(path)
	var doc yaml.Node
	if err != nil || yaml.Unmarshal(content, &doc) != nil || len(doc.Content) == 0 || doc.Content[0].Kind != yaml.MappingNode {
		return false
	}
	for i := 0; i < len(doc.Content[0].Content); i += 2 {
		if spelling.Nearest(doc.Content[0].Content[i].Value, []string{"command"}) != "" {
			return true
		}
	}
	return false
}

// LoadCommand reads a command's file and makes the paths in it absolute. Like [Load],
// it reports all problems at once.
func LoadCommand(path string) (*Command, error) {
	content, where, err := read(path)
	if err != nil {
		return nil, err
	}
	folder, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("read config: %w", err)
	}
	l := &loader{where: where, origins: map[string]string{}, bad: map[string]bool{}}
	c := &Command{Hang: DefaultHang, origins: l.origins}
	if root := l.document(bytes.TrimPrefix(content, []byte("\ufeff"))); root != nil {
		l.command(c, root)
	}
	if err := joined(l.problems); err != nil {
		return nil, err
	}
	if !filepath.IsAbs(c.Dir) {
		c.Dir = filepath.Join(folder, c.Dir)
	}
	if strings.ContainsAny(c.Profile, "./") && !filepath.IsAbs(c.Profile) {
		c.Profile = filepath.Join(folder, c.Profile)
	}
	for i, one := range c.Notify {
		if file, is := strings.CutPrefix(one, "@"); is && !filepath.IsAbs(file) {
			c.Notify[i] = "@" + filepath.Join(folder, file)
		}
	}
	return c, nil
}

// At returns where a key of c was given, such as "train.yaml:12", or only the file's
// name if the key was not given.
func (c *Command) At(key string) string {
	if where, ok := c.origins[key]; ok {
		return where
	}
	return c.origins[""]
}

func (l *loader) command(c *Command, root *yaml.Node) {
	l.origins[""] = l.where
	if root.Kind != yaml.MappingNode {
		l.add(l.line(root), "", inline(root), "not a mapping; write keys and values, as in command: [python, train.py]")
		return
	}
	var names []string
	for _, k := range commandKeys {
		names = append(names, k.name)
	}
	lines := map[string]int{}
	for i := 0; i < len(root.Content); i += 2 {
		key, val := root.Content[i], root.Content[i+1]
		first, twice := lines[key.Value]
		lines[key.Value] = key.Line
		if twice {
			l.add(l.line(key), key.Value, inline(val), fmt.Sprintf("given twice, first on line %d", first))
			continue
		}
		l.commandKey(c, key, val, names)
	}
	if c.RestartHung && c.Hang == 0 {
		l.add(l.at("restart_hung"), "restart_hung", "true", "has no effect with hang: never; leave out one of them")
	}
	if c.NoWorker {
		l.withoutWorker(c)
	}
	if _, given := lines["command"]; !given {
		l.add(l.where, "command", "", "missing; write the words of the training command, as in [python, train.py]")
	}
}

// withoutWorker adds a problem for each key that has no effect without a worker.
func (l *loader) withoutWorker(c *Command) {
	for _, k := range []struct {
		name, value string
		given       bool
	}{{"snapshot", "true", c.Snapshot}, {"micro", c.Micro, c.Micro != ""}, {"restart_leaking", "true", c.RestartLeaking}, {"observe", "true", c.Observe}} {
		if k.given {
			l.add(l.at(k.name), k.name, k.value, "has no effect with no_worker: true; leave out one of them")
		}
	}
}

func (l *loader) commandKey(c *Command, key, val *yaml.Node, names []string) {
	for _, k := range commandKeys {
		if k.name != key.Value {
			continue
		}
		l.origins[k.name] = l.line(key)
		for i := 0; val.Kind == yaml.MappingNode && i < len(val.Content); i += 2 {
			l.origins[k.name+"."+val.Content[i].Value] = l.line(val.Content[i])
		}
		v := k.value(c)
		if err := v.set(val); err != nil {
			l.add(l.line(key), k.name, inline(val), fmt.Sprintf("%v; allowed: %s", err, v.allowed()))
		}
		return
	}
	text := "unknown key; the known keys are " + list(names, "and")
	if best := spelling.Nearest(key.Value, names); best != "" {
		text = fmt.Sprintf("unknown key; did you mean %s?", best)
	}
	l.add(l.line(key), key.Value, inline(val), text)
}

// Document returns c as a YAML file for people to edit: every key with its meaning.
// Keys that are not given are commented out, except trust. notes holds further comment
// lines for each key, and under "" those for the whole file. c.Dir is written
// unchanged.
func (c *Command) Document(notes map[string][]string) ([]byte, error) {
	if !utf8.ValidString(c.Dir + strings.Join(c.Args, "")) {
		return nil, errors.New("the command has bytes that are not UTF-8, and YAML cannot hold them")
	}
	var b strings.Builder
	comment := func(lines []string) {
		for _, l := range lines {
			fmt.Fprintf(&b, "# %s\n", strings.Map(graphic, l))
		}
	}
	comment(notes[""])
	for _, k := range commandKeys {
		b.WriteByte('\n')
		comment(strings.Split(k.means, "\n"))
		comment(notes[k.name])
		n := k.value(c).node()
		if k.unset(c) && k.name != "trust" { // trust is never commented out: everybody should think about it
			fmt.Fprintf(&b, "# %s: %s\n", k.name, k.example)
			continue
		}
		part, err := yaml.Marshal(&yaml.Node{Kind: yaml.MappingNode, Content: []*yaml.Node{plain(k.name), n}})
		if err != nil {
			return nil, fmt.Errorf("write %s: %w", k.name, err)
		}
		b.Write(part)
	}
	return []byte(strings.TrimPrefix(b.String(), "\n")), nil
}

// YAML returns c as a YAML file with only the keys that are given.
func (c *Command) YAML() ([]byte, error) {
	n := &yaml.Node{Kind: yaml.MappingNode}
	for _, k := range commandKeys {
		if !k.unset(c) {
			n.Content = append(n.Content, plain(k.name), k.value(c).node())
		}
	}
	return yaml.Marshal(n)
}

// unset reports whether c has the value that applies when the key is not given.
func (k commandKey) unset(c *Command) bool {
	n, none := k.value(c).node(), k.value(&Command{Hang: DefaultHang}).node()
	return n.Kind == none.Kind && n.Value == none.Value && len(n.Content) == 0
}

// graphic returns r, or a space for a rune that is not graphic, such as a line break,
// so that a comment stays on its line.
func graphic(r rune) rune {
	if unicode.IsGraphic(r) {
		return r
	}
	return ' '
}
