package main

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// completeFlag is what the scripts add to a command line to ask the binary
// itself what could come next, so that they never fall behind it.
const completeFlag = "--generate-bash-completion"

// completions are the scripts. Each asks the binary, offers its answer, and
// falls back on file names.
var completions = map[string]string{
	"bash": `# bash completion for headroom: source <(headroom completion bash)
_headroom() {
    local word=${COMP_WORDS[COMP_CWORD]}
    local partial=
    [[ $word == -* ]] && partial=$word
    local answers
    answers=$("${COMP_WORDS[0]}" "${COMP_WORDS[@]:1:COMP_CWORD-1}" "$partial" ` + completeFlag + ` 2>/dev/null)
    local IFS=$'\n'
    COMPREPLY=($(compgen -W "$answers" -- "$word"))
}
complete -o bashdefault -o default -F _headroom headroom`,
	"zsh": `#compdef headroom
# zsh completion for headroom: source <(headroom completion zsh)
_headroom() {
    local -a answers
    local partial=
    [[ ${words[CURRENT]} == -* ]] && partial=${words[CURRENT]}
    answers=("${(@f)$("${words[1]}" "${(@)words[2,CURRENT-1]}" "$partial" ` + completeFlag + ` 2>/dev/null)}")
    [[ -n ${answers[1]} ]] && compadd -a answers
    [[ ${words[CURRENT]} == -* ]] || _files
}
if [[ ${zsh_eval_context[-1]} == loadautofunc ]]; then
    _headroom "$@"
else
    compdef _headroom headroom
fi`,
	"fish": `# fish completion for headroom: headroom completion fish | source
function __headroom_complete
    set -l asked (commandline -opc)
    set -l partial (commandline -ct)
    string match -q -- '-*' $partial; or set partial ''
    $asked "$partial" ` + completeFlag + ` 2>/dev/null
end
complete -c headroom -a '(__headroom_complete)'`,
}

func completionCommand(u *ui) *cli.Command {
	shells := slices.Sorted(func(yield func(string) bool) {
		for shell := range completions {
			if !yield(shell) {
				return
			}
		}
	})
	which := strings.Join(shells, ", ")
	return &cli.Command{
		Name:      "completion",
		Usage:     "print the completion script of a shell",
		ArgsUsage: strings.Join(shells, "|"),
		Description: `bash:  source <(headroom completion bash)
zsh:   source <(headroom completion zsh)
fish:  headroom completion fish | source`,
		Action: func(c *cli.Context) error {
			shell, err := oneArgument(c, "the name of a shell", "one of "+which)
			if err != nil {
				return err
			}
			script, ok := completions[shell]
			if !ok {
				return usagef("", "no completion for %q: one of %s", shell, which)
			}
			return u.answer(script)
		},
		BashComplete: func(c *cli.Context) { offer(c, shells...) },
	}
}

// offer prints what could come next, one a line.
func offer(c *cli.Context, words ...string) {
	for _, w := range words {
		_, _ = fmt.Fprintln(c.App.Writer, w)
	}
}

func completeCommands(c *cli.Context) {
	if completingFlag() {
		offerFlags(c, c.App.Flags)
		return
	}
	for _, command := range c.App.VisibleCommands() {
		offer(c, command.Name)
	}
}

// completeFlags offers a command's flags, and its arguments as they come from
// arguments.
func completeFlags(command *cli.Command, arguments ...func() []string) cli.BashCompleteFunc {
	return func(c *cli.Context) {
		if completingFlag() {
			offerFlags(c, command.Flags)
			return
		}
		for _, words := range arguments {
			offer(c, words()...)
		}
	}
}

// completingFlag tells whether the word being completed starts like a flag. The
// scripts pass on what stands before it and then the word if it does, or "".
func completingFlag() bool {
	return len(os.Args) > 2 && strings.HasPrefix(os.Args[len(os.Args)-2], "-")
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
