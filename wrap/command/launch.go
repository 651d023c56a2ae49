package command

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Launch is what the wrappers and launchers of a command start: the program that
// trains, and how many ranks of it. Positions are indices into [Line.Args].
type Launch struct {
	Layers  []string // wrappers and launchers, outermost first: "env", "srun", "torchrun"
	Script  string   // a Python file, as it was written; "" if there is none
	Module  string   // module that python -m runs; "" if there is none
	Program string   // an executable that is not Python; "" if Script or Module is set
	At      int      // position of Script, Module or Program
	First   int      // position of the training program's first own argument
	Ranks   int      // processes on all machines together; 0 if not known, and then Why says why
	Devices int      // GPUs that a process may use by itself; 0 if not known
	Why     string   // why Ranks is not known

	Assigned map[string]int // positions of the arguments of the form VAR=v, by variable
	Options  []Option       // of the wrappers and launchers
}

// OpaqueError says that the program that trains cannot be seen in a command, and what
// to write instead.
type OpaqueError struct {
	Layer  string // what hides it, such as "bash"
	Reason string
}

func (e *OpaqueError) Error() string {
	return fmt.Sprintf("cannot see the training command inside %s: %s", e.Layer, e.Reason)
}

// Option is one option of a wrapper or launcher.
type Option struct {
	Layer string
	Name  string // without leading dashes, and with _ in place of every other -
	Value string
	At    int // argument that holds the value, or the option itself if it has none
	Cut   int // where the value begins in that argument
}

// Peel strips wrappers and launchers off c until it reaches the program that trains.
// It reads no file. The error is an [*OpaqueError] if a wrapper hides that program.
func Peel(c Line) (Launch, error) {
	p := peeler{c: c, launch: Launch{Assigned: map[string]int{}}}
	for p.at < len(c.Args) {
		done, err := p.layer()
		if err != nil {
			return Launch{}, err
		}
		if done {
			p.ranks()
			return p.launch, nil
		}
	}
	return Launch{}, &OpaqueError{"the command", "it names no program to run"}
}

// Name returns the name of the training program: its module, or the base name of its
// file or executable.
func (l Launch) Name() string {
	if l.Module != "" {
		return l.Module
	}
	return path.Base(l.Script + l.Program)
}

// Getenv returns the value of a variable as the training program will see it, and
// whether the variable is set.
func (l Launch) Getenv(c Line, key string) (string, bool) {
	if at, ok := l.Assigned[key]; ok {
		_, value, _ := strings.Cut(c.Args[at], "=")
		return value, true
	}
	return c.Getenv(key)
}

// Option returns the last wrapper or launcher option with the given name, and whether
// there is one.
func (l Launch) Option(name string) (Option, bool) {
	for _, o := range slices.Backward(l.Options) {
		if o.Name == name {
			return o, true
		}
	}
	return Option{}, false
}

type peeler struct {
	c      Line
	at     int
	launch Launch
}

// layer strips one layer; done reports whether the training program was reached.
func (p *peeler) layer() (done bool, err error) {
	arg := p.c.Args[p.at]
	if name, _, ok := strings.Cut(arg, "="); ok && IsVariable(name) {
		p.launch.Assigned[name] = p.at
		p.at++
		return false, nil
	}
	name := path.Base(arg)
	if reason, hidden := opaque[name]; hidden {
		return false, &OpaqueError{name, reason}
	}
	if isPython(name) {
		return p.python()
	}
	kind, known := p.wrapper(name)
	if !known {
		return true, p.program(arg)
	}
	return p.through(kind)
}

// wrapper returns the layer that begins at the current argument, if there is one, and
// moves past its words.
func (p *peeler) wrapper(name string) (layer, bool) {
	for _, l := range layers {
		words := strings.Fields(l.words)
		rest := p.c.Args[p.at:]
		if words[0] != name || len(rest) < len(words) || !slices.Equal(rest[1:len(words)], words[1:]) {
			continue
		}
		p.at += len(words)
		return l, true
	}
	return layer{}, false
}

// through reads the options of a layer up to the command inside it.
func (p *peeler) through(l layer) (done bool, err error) {
	p.launch.Layers = append(p.launch.Layers, l.words)
	module, program := false, false
	for p.at < len(p.c.Args) {
		arg := p.c.Args[p.at]
		if arg == "--" {
			p.at++
			break
		}
		if !strings.HasPrefix(arg, "-") || arg == "-" {
			break
		}
		name, err := p.option(l, arg)
		if err != nil {
			return false, err
		}
		module = module || slices.Contains(l.module, name)
		program = program || slices.Contains(l.program, name)
	}
	if p.at >= len(p.c.Args) {
		return false, nil
	}
	switch {
	case module:
		p.launch.Module, p.launch.At, p.launch.First = p.c.Args[p.at], p.at, p.at+1
		return true, nil
	case program:
		return true, p.program(p.c.Args[p.at])
	case l.starts && !strings.HasSuffix(p.c.Args[p.at], ".py"):
		return false, &OpaqueError{l.words, fmt.Sprintf("%s is not a Python file", p.c.Args[p.at])}
	}
	return false, nil
}

// option reads one option of a layer and moves past it. The name that it returns has no
// leading dashes, and each remaining - is replaced by _.
func (p *peeler) option(l layer, arg string) (string, error) {
	name, value, given := strings.Cut(arg, "=")
	bare := strings.ReplaceAll(strings.TrimLeft(name, "-"), "-", "_")
	o := Option{Layer: l.words, Name: l.canonical(bare), Value: value, At: p.at, Cut: len(name) + 1}
	p.at++
	switch {
	case given:
	case l.takes[bare] > 0:
		if p.at+l.takes[bare] > len(p.c.Args) {
			return "", &OpaqueError{l.words, arg + " has no value"}
		}
		o.Value, o.At, o.Cut = p.c.Args[p.at], p.at, 0
		p.at += l.takes[bare]
	case slices.Contains(l.alone, bare):
	default:
		short, ok := l.attached(arg)
		if !ok {
			return "", &OpaqueError{l.words, fmt.Sprintf("option %s is not known; write its value as %s=VALUE, or put -- in front of the inner command", arg, arg)}
		}
		o.Name, o.Value, o.Cut = l.canonical(short), arg[2:], 2
	}
	p.launch.Options = append(p.launch.Options, o)
	return bare, nil
}

// python reads the interpreter's own options, and what Python runs after them.
func (p *peeler) python() (done bool, err error) {
	for p.at++; p.at < len(p.c.Args); p.at++ {
		arg := p.c.Args[p.at]
		switch {
		case arg == "-":
			return false, &OpaqueError{"python -", "the script comes from standard input, for example from a here-document, so it cannot be started again; write it to a file"}
		case arg == "-c":
			return false, &OpaqueError{"python -c", "the script is passed as an argument; write it to a file"}
		case arg == "-m":
			p.at++
			return p.module()
		case arg == "-W" || arg == "-X":
			p.at++
		case !strings.HasPrefix(arg, "-"):
			return true, p.program(arg)
		}
	}
	return false, &OpaqueError{"python", "no script is named, so python would read standard input"}
}

// module reads the module after python -m. If the module is a launcher, it is a layer. Any
// other module is the training program.
func (p *peeler) module() (done bool, err error) {
	if p.at >= len(p.c.Args) {
		return false, &OpaqueError{"python -m", "no module is named"}
	}
	name := p.c.Args[p.at]
	if as, ok := launcherModules[name]; ok {
		p.at++
		words := strings.Fields(as)
		if len(words) > 1 && name != "accelerate.commands.launch" {
			if p.at >= len(p.c.Args) || p.c.Args[p.at] != words[1] {
				return false, &OpaqueError{"python -m " + name, "it starts no training"}
			}
			p.at++
		}
		return p.through(layers[slices.IndexFunc(layers, func(l layer) bool { return l.words == as })])
	}
	p.launch.Module, p.launch.At, p.launch.First = name, p.at, p.at+1
	return true, nil
}

func (p *peeler) program(arg string) error {
	p.launch.At, p.launch.First = p.at, p.at+1
	switch {
	case strings.HasSuffix(arg, ".py"):
		p.launch.Script = arg
	case strings.HasSuffix(arg, ".sh"):
		return &OpaqueError{arg, opaque["bash"]}
	default:
		p.launch.Program = arg
	}
	return nil
}

func isPython(name string) bool {
	version, ok := strings.CutPrefix(name, "python")
	return ok && strings.Trim(version, "0123456789.") == ""
}

// IsVariable reports whether s may be the name of an environment variable.
func IsVariable(s string) bool {
	for i, r := range s {
		if r != '_' && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return s != ""
}

// Number returns s as a positive integer, or 0 if it is not one.
func Number(s string) int {
	n, err := strconv.Atoi(strings.TrimSpace(s))
	if err != nil || n < 1 {
		return 0
	}
	return n
}

// Alone reports whether no launcher starts the ranks.
func (l Launch) Alone() bool {
	for _, name := range l.Layers {
		switch name {
		case "env", "nohup", "nice", "uv run", "conda run":
		default:
			return false
		}
	}
	return true
}

// Isolated returns the option that keeps a Python interpreter in the command from seeing
// what headroom adds to its environment, or "" if there is none.
func (c Line) Isolated() string {
	for i, word := range c.Args {
		if !isPython(path.Base(word)) {
			continue
		}
		if option := isolating(c.Args[i+1:]); option != "" {
			return option
		}
	}
	return ""
}

// isolating returns the first of Python's options that makes Python ignore the
// environment or skip the site module, or "" if there is none.
func isolating(options []string) string {
	for i := 0; i < len(options); i++ {
		option := options[i]
		if !strings.HasPrefix(option, "-") || strings.HasPrefix(option, "--") || option == "-" {
			return ""
		}
		letters, value := option[1:], strings.IndexAny(option[1:], "cmWX")
		if value >= 0 {
			letters = letters[:value] // the rest is a value
		}
		if strings.ContainsAny(letters, "IES") {
			return option
		}
		if value < 0 {
			continue
		}
		if strings.ContainsAny(option[value+1:value+2], "cm") {
			return "" // the program begins
		}
		if value == len(option)-2 {
			i++ // the value is the next word
		}
	}
	return ""
}
