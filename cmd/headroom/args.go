package main

import (
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// flagsFirst moves the flags of a command in front of its arguments, because
// the flag parser stops at the first argument and people write
// "headroom run gpt --json". Everything from "--" on stays where it is.
func flagsFirst(app *cli.App, args []string) []string {
	if args[len(args)-1] == completeFlag {
		return args // has to stay the last word
	}
	at := slices.IndexFunc(args[min(1, len(args)):], func(a string) bool { return !strings.HasPrefix(a, "-") }) + 1
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

func isFlag(word string) bool { return len(word) > 1 && word[0] == '-' }

// takesNext tells whether the word after flag is its value.
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
