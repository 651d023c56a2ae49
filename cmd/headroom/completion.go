package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"unicode"

	"github.com/urfave/cli/v2"

	"headroom/cmd/headroom/ui"
	"headroom/configs"
	"headroom/wrap/profile"
)

// completeFlag is the flag by which a completion script asks the binary itself how the
// word under the cursor could be completed. The script adds the flag to the command line,
// which ends with that word. The scripts themselves know no commands or flags, so they
// cannot fall behind the binary.
const completeFlag = "--generate-bash-completion"

// anyFile is the answer by which the binary tells a script to offer file names as well.
// No preset and no run can have this name.
const anyFile = ":files"

// completions holds the completion script of each shell. The scripts never evaluate the
// binary's answers as code, so the name of a folder cannot become a command.
var completions = map[string]string{
	"bash": `# bash completion for headroom: source <(headroom completion bash)
_headroom() {
    local -a words
    local line=${COMP_LINE:0:COMP_POINT} word= answer file
    read -ra words <<<"$line" # COMP_WORDS is cut at every = and :
    [[ $line == *[[:space:]] ]] || { word=${words[-1]}; unset 'words[-1]'; }
    words[0]=${words[0]/#\~\//$HOME/}
    COMPREPLY=()
    while IFS= read -r answer; do
        if [[ $answer == ` + anyFile + ` ]]; then
            [[ $word == *=* ]] && continue # readline knows where the name of the file starts
            compopt -o filenames 2>/dev/null
            while IFS= read -r file; do
                COMPREPLY+=("$file")
            done < <(compgen -f -- "$word")
        elif [[ $answer == "$word"* ]]; then
            [[ $answer == *= ]] && compopt -o nospace 2>/dev/null # its value comes next
            COMPREPLY+=("$answer")
        fi
    done < <("${words[@]}" "$word" ` + completeFlag + ` 2>/dev/null)
}
complete -o bashdefault -o default -F _headroom headroom`,
	"zsh": `#compdef headroom
# zsh completion for headroom: source <(headroom completion zsh)
_headroom() {
    local -a answers
    answers=("${(@f)$("${words[1]/#\~\//$HOME/}" "${(@)words[2,CURRENT-1]}" "${words[CURRENT]}" ` + completeFlag + ` 2>/dev/null)}")
    local files=${answers[(r)` + anyFile + `]}
    answers=("${(@)answers:#(|` + anyFile + `)}")
    local -a keys=("${(@M)answers:#*=}") # their values come next
    answers=("${(@)answers:#*=}")
    (( $#answers )) && compadd -a answers
    (( $#keys )) && compadd -S '' -a keys
    if [[ -n $files ]]; then
        compset -P '*='
        _files
    fi
}
if [[ ${zsh_eval_context[-1]} == loadautofunc ]]; then
    _headroom "$@"
else
    compdef _headroom headroom
fi`,
	"fish": `# fish completion for headroom: headroom completion fish | source
function __headroom_complete
    set -l asked (commandline -opc)
    set -l word (commandline -ct)
    set asked[1] (string replace -r '^~/' "$HOME/" -- $asked[1])
    type -q $asked[1]; or return
    for answer in ($asked "$word" ` + completeFlag + ` 2>/dev/null)
        if test $answer = ` + anyFile + `
            set -l key (string match -r '^.*=' -- $word)
            string replace -r '^' "$key" -- (__fish_complete_path (string replace -r '^.*=' '' -- $word))
        else
            echo $answer
        end
    end
end
complete -c headroom -f -a '(__headroom_complete)'`,
}

func completionCommand(u *ui.UI) *cli.Command {
	shells := slices.Sorted(func(yield func(string) bool) {
		for shell := range completions {
			if !yield(shell) {
				return
			}
		}
	})
	which := strings.Join(shells, ", ")
	command := &cli.Command{
		Name:      "completion",
		Usage:     "print the completion script of a shell",
		ArgsUsage: strings.Join(shells, "|"),
		Description: `bash:  source <(headroom completion bash)  in ~/.bashrc
zsh:   source <(headroom completion zsh)   in ~/.zshrc, after compinit
fish:  headroom completion fish | source   in ~/.config/fish/config.fish`,
		Action: func(c *cli.Context) error {
			shell, err := oneArgument(c, "the name of a shell", "one of "+which)
			if err != nil {
				return err
			}
			script, ok := completions[shell]
			if !ok {
				return ui.Usagef("", "no completion for %q: one of %s", shell, which)
			}
			return u.Answer(script)
		},
	}
	command.BashComplete = completeFlags(command, func() []string { return shells })
	return command
}

// offer prints the words that could come next, one per line. It leaves out words that
// would have to be quoted in a shell.
func offer(c *cli.Context, words ...string) {
	for _, w := range words {
		if !strings.ContainsFunc(w, needsQuotes) {
			_, _ = fmt.Fprintln(c.App.Writer, w)
		}
	}
}

func needsQuotes(r rune) bool {
	return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("._-:=", r)
}

func completeCommands(c *cli.Context) {
	complete(c, &cli.Command{ArgsUsage: "COMMAND", Flags: c.App.Flags})
}

// completeFlags returns a function that offers a command's flags. For the command's
// argument, it offers the given words and what the command's ArgsUsage allows.
func completeFlags(command *cli.Command, words ...func() []string) cli.BashCompleteFunc {
	return func(c *cli.Context) { complete(c, command, words...) }
}

// completeShow returns a function that offers "show" and, after that word, names and files.
func completeShow(command *cli.Command, names func() []string) cli.BashCompleteFunc {
	return func(c *cli.Context) {
		at, word := askedOf(os.Args, command)
		if at.value == "" && at.arguments == 1 && !strings.HasPrefix(word, "-") {
			offer(c, append(names(), anyFile)...)
			return
		}
		complete(c, command, func() []string { return []string{"show"} })
	}
}

func complete(c *cli.Context, command *cli.Command, words ...func() []string) {
	at, word := askedOf(os.Args, command)
	switch {
	case at.value != "":
		offer(c, flagValues(at.value, word)...)
	case strings.HasPrefix(word, "-") && !at.ended:
		offerFlags(c, command.Flags)
	case at.arguments == 0:
		for _, some := range words {
			offer(c, some()...)
		}
		offer(c, usualArguments(c, command.ArgsUsage, word)...)
	}
}

// usualArguments returns what usage, the ArgsUsage of a command, allows in addition to the
// words that the command itself offers. word is the part of the argument that has been typed.
func usualArguments(c *cli.Context, usage, word string) []string {
	var names []string
	switch strings.Trim(usage, "[]") {
	case "CONFIG", "-- COMMAND | CONFIG", "-- COMMAND | FILE":
		return []string{anyFile}
	case "RUN":
		if strings.Contains(word, "/") { // files only for a path: they would hide the names of runs
			return []string{anyFile}
		}
	case "COMMAND":
		for _, command := range c.App.VisibleCommands() {
			names = append(names, command.Name)
		}
	}
	return names
}

// place is the position of the cursor among the words of a command.
type place struct {
	value     string // the flag whose value is asked for, or ""
	ended     bool   // after "--", where there are no flags
	arguments int    // how many arguments come before the cursor
}

// askedOf takes apart the arguments that a completion script passes to headroom. It returns the
// place of the cursor among the words of command, and the part of the word under the cursor that
// has been typed. A command without a name means headroom itself.
func askedOf(args []string, command *cli.Command) (place, string) {
	if len(args) < 3 {
		return place{}, ""
	}
	before, word := args[1:len(args)-2], args[len(args)-2]
	var at place
	for _, w := range before[slices.Index(before, command.Name)+1:] {
		switch {
		case at.value != "":
			at.value = ""
		case at.ended || !isFlag(w):
			at.arguments++
		case w == "--":
			at.ended = true
		case takesNext(command, w):
			at.value = strings.TrimLeft(w, "-")
		}
	}
	return at, word
}

// flagValues returns the possible values of a flag. word is the part of the value that has been
// typed.
func flagValues(flag, word string) []string {
	switch flag {
	case "format":
		return []string{"html", "md"}
	case "knob":
		return profile.KnobWords()
	case "output", "o":
		return []string{anyFile}
	case "profile":
		return append(profileNames(), anyFile)
	case "set":
		if strings.Contains(word, "=") { // as in data.path=book.txt
			return []string{anyFile}
		}
		return keyNames("=")
	case "unset":
		return keyNames("")
	}
	return nil
}

// keyNames returns the keys of a configuration, each followed by the suffix behind.
func keyNames(behind string) []string {
	var all []string
	for _, key := range configs.Keys() {
		all = append(all, key.Name+behind)
	}
	return all
}

func offerFlags(c *cli.Context, flags []cli.Flag) {
	for _, f := range flags {
		for _, name := range f.Names() {
			if len(name) > 1 {
				offer(c, "--"+name)
			}
		}
	}
}
