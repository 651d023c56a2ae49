package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"headroom/cmd/headroom/ui"
	"headroom/configs"
)

func init() {
	cli.HelpPrinter = printHelp
	cli.FlagStringer = func(f cli.Flag) string { return f.Names()[0] }               // the library calls this at every start, for help pages that printHelp replaces
	cli.HelpFlag = &cli.BoolFlag{Name: "help", Aliases: []string{"h"}, Hidden: true} // it needs no line on the page that it prints
}

// These are the groups of flags in the help of a headroom command that takes either the user's
// command or a configuration.
const (
	forCommand = "-- COMMAND"
	forConfig  = "CONFIG"
	forBoth    = "BOTH"
)

// grouped puts flags into a group, and returns them.
func grouped(group string, flags ...cli.Flag) []cli.Flag {
	for _, f := range flags {
		reflect.ValueOf(f).Elem().FieldByName("Category").SetString(group) // every kind of flag has this field, but none has a method that sets it
	}
	return flags
}

// flagHelp returns the line of help for a flag. On every page the description begins in the same
// column, two columns after the end of the longest flag, --restart-leaking.
func flagHelp(f cli.Flag) string {
	names, value, usage := flagParts(f)
	return fmt.Sprintf("%-17s  %s", strings.TrimSpace(strings.Join(names, ", ")+" "+value), usage)
}

// flagParts returns a flag's names with their dashes, the placeholder of its value ("" if it
// takes none), and a description of what it does. In the flag's Usage, the placeholder is
// between backquotes. If the Usage begins with the placeholder and a colon, the description is
// the rest; otherwise it is the whole Usage without the backquotes.
func flagParts(f cli.Flag) (names []string, value, usage string) {
	for _, name := range f.Names() {
		names = append(names, dashed(name))
	}
	if doc, ok := f.(cli.DocGenerationFlag); ok {
		usage = doc.GetUsage()
		if quoted := strings.Split(usage, "`"); len(quoted) == 3 {
			value = quoted[1]
			usage = strings.TrimPrefix(usage, "`"+value+"`: ")
		}
	}
	return names, value, strings.ReplaceAll(usage, "`", "")
}

// flagsFirst returns args with the flags of a command in front of its arguments, because the
// flag parser stops at the first argument and people write "headroom run gpt --json".
// Everything from "--" on stays where it is. If one of the flags is --help, the other words are
// dropped: the parser would take an argument for the name of a help page. For a completion
// script, flagsFirst returns the result of [question].
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
		case slices.Contains(cli.HelpFlag.Names(), strings.TrimLeft(words[0], "-")):
			return slices.Concat(args[:at+1], words[:1])
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

// takeCommands lists the headroom commands that take the user's command after "--".
var takeCommands = []string{"run", "explain", "check", "init", "find"}

// cutCommand divides the command line of a command in takeCommands at the first "--": ours comes
// before it, and everything after it, even a second "--", is the user's command. command is nil if
// there is no "--", or if a completion script asks about the command line.
func cutCommand(args []string) (ours, command []string) {
	at := slices.Index(args, "--")
	if at < 0 || len(args) < 2 || !slices.Contains(takeCommands, args[1]) || args[len(args)-1] == completeFlag {
		return args, nil
	}
	return args[:at], append([]string{}, args[at+1:]...)
}

// question returns the command line by which a completion script asks about the command at
// args[at], or about headroom itself if that word is not a command. It leaves out the rest of
// the line, which is half typed, so that the parser never sees it.
func question(app *cli.App, args []string, at int) []string {
	if at > 0 && at < len(args)-2 && app.Command(args[at]) != nil {
		return []string{args[0], args[at], completeFlag}
	}
	return []string{args[0], completeFlag}
}

func isFlag(word string) bool { return len(word) > 1 && word[0] == '-' }

// takesNext reports whether the word that follows flag is the flag's value.
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

// values describes the flags that can be given a wrong value: for each, what is allowed, and a
// hint about what to write instead.
var values = map[string]struct{ allowed, hint string }{
	"hang":      {"0, or a time with its unit, such as 10m or 1h30m", "for example --hang 30m, or 0 for never"},
	"flat-for":  {"a time of more than 0 with its unit, such as 90s or 2m", "for example --flat-for 90s, or leave it out"},
	"node-gone": {"a time of at least a second with its unit, such as 2m", "for example --node-gone 5m, or leave it out"},
	"world":     {"a whole number, at least 1", "for example --world 8, or leave it out"},
	"look":      {"a whole number, at least 1", "for example --look 200, or leave it out"},
	"free":      {"a size of more than 0 with its unit, such as 60GiB", "for example --free 60GiB, or leave it out"},
	"memory":    {"a size of more than 0 with its unit, such as 24GiB", "for example --memory 24GiB, or leave it out"},
	"micro":     {configs.MicroAllowed, "for example --micro auto, or leave it out"},
	"spill":     {"off, or a size of more than 0 with its unit, such as 64GiB", "for example --spill 64GiB, or leave it out"},
	"trackers":  {"wandb, mlflow, wandb,mlflow or off", "for example --trackers off, or leave it out"},
	"metrics":   {"an address of this machine with a port that is free", "for example --metrics 127.0.0.1:9408"},
}

// wrongValue returns the usage error for a value that the flag with the given name does not
// take. why says what is wrong with the value. name is a key of [values].
func wrongValue(name string, value any, why string) error {
	return ui.Usagef(values[name].hint, "--%s %v: %s; allowed: %s", name, value, why, values[name].allowed)
}

// notASize returns the usage error for the value of a flag that takes a size. If err is not nil,
// the value could not be parsed; otherwise the size is too small.
func notASize(name, value string, err error) error {
	if err != nil {
		return wrongValue(name, value, "not a size")
	}
	return wrongValue(name, value, outOfRange)
}

const outOfRange = "out of range"

// valueFault translates text, a message of the flag parser about a wrong value, into a
// usage error in headroom's own words. It returns nil if text is about something else.
func valueFault(c *cli.Context, text string) error {
	if name, without := strings.CutPrefix(text, "flag needs an argument: -"); without {
		name = strings.TrimLeft(name, "-")
		return ui.Usagef(values[name].hint, "flag %s needs a value", dashed(name))
	}
	notParsed := regexp.MustCompile(`^invalid (boolean )?value ("(?:[^"\\]|\\.)*") for (?:flag )?-(\S+): (.*)$`) // compiled here, because only a start that goes wrong needs it
	wrong := notParsed.FindStringSubmatch(text)
	if wrong == nil {
		return nil
	}
	name := wrong[3]
	value, err := strconv.Unquote(wrong[2])
	if err != nil {
		value = wrong[2]
	}
	if wrong[1] != "" {
		hint := dashed(name) + ", or leave it out"
		if _, err := os.Stat(value); err == nil || slices.Contains(configs.Presets(), value) {
			hint = fmt.Sprintf("%s %s %s", c.Command.HelpName, dashed(name), value)
		}
		return ui.Usagef(hint, "%s=%s: %[1]s takes no value", dashed(name), value)
	}
	why := "not a whole number"
	if slices.ContainsFunc(c.Command.Flags, func(f cli.Flag) bool {
		_, is := f.(*cli.DurationFlag)
		return is && slices.Contains(f.Names(), name)
	}) {
		why = "not a time"
	}
	if strings.HasSuffix(wrong[4], outOfRange) {
		why = outOfRange
	}
	return wrongValue(name, value, why)
}

// dashed returns a flag's name with its dashes.
func dashed(name string) string { return strings.Repeat("-", min(2, len(name))) + name }

// noAddress returns the reason why an address cannot be listened on, without the details that the
// network library adds to it.
func noAddress(err error) string {
	var failed *net.OpError
	if errors.As(err, &failed) {
		err = failed.Err
	}
	var address *net.AddrError
	if errors.As(err, &address) {
		return address.Err
	}
	var system *os.SyscallError
	if errors.As(err, &system) {
		err = system.Err
	}
	return err.Error()
}
