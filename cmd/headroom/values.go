package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"headroom/cmd/headroom/ui"
	"headroom/configs"
)

// values describes the flags that can be given a wrong value: for each, what is allowed, and a
// hint about what to write instead.
var values = map[string]struct{ allowed, hint string }{
	"hang":     {"0, or a time with its unit, such as 10m or 1h30m", "for example --hang 30m, or 0 for never"},
	"flat-for": {"a time of more than 0 with its unit, such as 90s or 2m", "for example --flat-for 90s, or leave it out"},
	"world":    {"a whole number, at least 1", "for example --world 8, or leave it out"},
	"free":     {"a size of more than 0 with its unit, such as 60GiB", "for example --free 60GiB, or leave it out"},
	"memory":   {"a size of more than 0 with its unit, such as 24GiB", "for example --memory 24GiB, or leave it out"},
	"metrics":  {"an address of this machine with a port that is free", "for example --metrics 127.0.0.1:9408"},
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
