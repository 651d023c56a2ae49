package main

import (
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

func init() { cli.FlagStringer = flagHelp }

// flagHelp is a flag's line of help, wrapped to fit in 80 columns.
func flagHelp(f cli.Flag) string {
	const width = 52 // the columns left after the longest names, --output FILE, -o FILE
	names, value, usage := flagParts(f)
	for i := range names {
		names[i] = strings.TrimSpace(names[i] + " " + value)
	}
	return strings.Join(names, ", ") + "\t" + strings.ReplaceAll(folded(usage, width, 0), "\n", "\n   \t")
}

// flagParts are a flag's names with their dashes, the word that stands for its
// value ("" if it takes none), and what it does.
func flagParts(f cli.Flag) (names []string, value, usage string) {
	for _, name := range f.Names() {
		names = append(names, dashed(name))
	}
	if doc, ok := f.(cli.DocGenerationFlag); ok {
		usage = doc.GetUsage()
		if quoted := strings.Split(usage, "`"); len(quoted) == 3 {
			value = quoted[1]
		}
	}
	return names, value, strings.ReplaceAll(usage, "`", "")
}

// flagsFirst moves the flags of a command in front of its arguments, because
// the flag parser stops at the first argument and people write
// "headroom run gpt --json". Everything from "--" on stays where it is.
func flagsFirst(app *cli.App, args []string) []string {
	completing := args[len(args)-1] == completeFlag
	at := slices.IndexFunc(args[min(1, len(args)):], func(a string) bool { return !strings.HasPrefix(a, "-") }) + 1
	if completing {
		return question(app, args, at)
	}
	if at == 0 {
		return args
	}
	command := app.Command(args[at])
	if command == nil {
		return args
	}
	var flags, rest []string
	for words := args[at+1:]; len(words) > 0; {
		n := 1
		switch {
		case words[0] == "--":
			n = len(words)
			rest = append(rest, words...)
		case !isFlag(words[0]):
			rest = append(rest, words[0])
		default:
			if takesNext(command, words[0]) {
				n = 2
			}
			if n > len(words) {
				return slices.Concat(args[:at+1], flags, words) // for the parser to refuse
			}
			flags = append(flags, words[:n]...)
		}
		words = words[n:]
	}
	return slices.Concat(args[:at+1], flags, rest)
}

// takeCommands are headroom's commands that take a command of the user's after "--".
var takeCommands = []string{"run", "explain", "check", "init", "find"}

// cutCommand divides the words of one of takeCommands at the first "--": what follows,
// even a second "--", is the user's command. command is nil if there is no "--".
func cutCommand(args []string) (ours, command []string) {
	at := slices.Index(args, "--")
	if at < 0 || len(args) < 2 || !slices.Contains(takeCommands, args[1]) || args[len(args)-1] == completeFlag {
		return args, nil
	}
	return args[:at], append([]string{}, args[at+1:]...)
}

// question is a completion script's question about the command at args[at], or about
// headroom itself if that is not a command. The parser never sees the rest of the line,
// which is half typed.
func question(app *cli.App, args []string, at int) []string {
	if at > 0 && at < len(args)-2 && app.Command(args[at]) != nil {
		return []string{args[0], args[at], completeFlag}
	}
	return []string{args[0], completeFlag}
}

func isFlag(word string) bool { return len(word) > 1 && word[0] == '-' }

// takesNext reports whether the word after flag is its value.
func takesNext(command *cli.Command, flag string) bool {
	name := strings.TrimLeft(flag, "-")
	if strings.Contains(name, "=") {
		return false
	}
	for _, f := range command.Flags {
		doc, ok := f.(cli.DocGenerationFlag)
		if ok && slices.Contains(f.Names(), name) {
			return doc.TakesValue()
		}
	}
	return false
}
