package notify

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Receiver is who gets messages: a command, or an address and the form that it understands.
type Receiver struct {
	command string   // for a shell; "" for an address
	address *url.URL // of the one request; nil for a command
	form    form
}

// form is what a service understands.
type form string

const (
	asNtfy    form = "ntfy"
	asSlack   form = "slack" // Mattermost, Rocket.Chat and others understand it, too
	asDiscord form = "discord"
	asJSON    form = "json"
)

// What stands for a webhook at a service's own host.
const (
	slackTokens   = `^T[A-Z0-9]+/B[A-Z0-9]+/[A-Za-z0-9]+$`
	discordTokens = `^[0-9]+/[A-Za-z0-9_-]+$`
)

// Parse returns the receiver that a user has written. One that begins as URLs do, as in https://, is an address. Its form is that of the
// service that its host is known for, and JSON for any other. A scheme names the form of a host that is not known, as in
// slack://chat.example/hooks/KEY, or slack+http:// without encryption. ntfy://TOPIC, slack://T…/B…/KEY and
// discord://ID/TOKEN are topics and tokens of the services' own hosts. Everything else is a command.
func Parse(given string) (Receiver, error) {
	scheme, rest, is := strings.Cut(given, "://")
	switch scheme = strings.ToLower(scheme); {
	case strings.TrimSpace(given) == "":
		return Receiver{}, errors.New("nobody is named")
	case !is && oneSlash(given):
		named, _, _ := strings.Cut(given, ":")
		return Receiver{}, fmt.Errorf("%s:… is neither an address, which begins with %[1]s://, nor a command", named)
	case !is || scheme == "" || strings.Trim(scheme, "abcdefghijklmnopqrstuvwxyz0123456789+.-") != "":
		return Receiver{command: given}, nil
	}
	named, plain := strings.CutSuffix(scheme, "+http")
	f := form(named)
	switch {
	case scheme == "http" || scheme == "https":
		return addressed(scheme+"://"+rest, "")
	case !slices.Contains([]form{asNtfy, asSlack, asDiscord, asJSON}, f):
		return Receiver{}, fmt.Errorf("%s:// is not known; known are https, http, ntfy, slack, discord and json", scheme)
	case plain:
		return addressed("http://"+rest, f)
	}
	return addressed("https://"+ownHost(f, rest)+rest, f)
}

// oneSlash reports whether given begins as an address of a known form does, but for its slashes.
func oneSlash(given string) bool {
	return matches(`^(?i:https?|ntfy|slack|discord|json):\S*$`, given)
}

// ownHost returns the beginning of an address at a service's own host if rest is only a topic or tokens, and "" if it has a host.
func ownHost(f form, rest string) string {
	switch {
	case f == asNtfy && !strings.Contains(rest, "/"):
		return "ntfy.sh/"
	case f == asSlack && matches(slackTokens, rest):
		return "hooks.slack.com/services/"
	case f == asDiscord && matches(discordTokens, rest):
		return "discord.com/api/webhooks/"
	}
	return ""
}

func matches(pattern, text string) bool {
	is, _ := regexp.MatchString(pattern, text) // compiled here, because few starts need it; it is a valid one
	return is
}

// addressed returns the receiver at an address, of the form f or, if that is "", of the form that the host understands.
func addressed(address string, f form) (Receiver, error) {
	u, err := url.Parse(address)
	if err != nil || u.Hostname() == "" { // the error has the address, which is a secret
		scheme, _, _ := strings.Cut(address, "://")
		return Receiver{}, fmt.Errorf("%s://… is not an address: it names no host", cmp.Or(string(f), scheme))
	}
	if f == "" {
		f = formOf(strings.ToLower(u.Hostname()))
	}
	if f == asNtfy && strings.Trim(u.Path, "/") == "" {
		return Receiver{}, fmt.Errorf("%s: a topic is missing, as in ntfy://%[1]s/TOPIC", u.Host)
	}
	return Receiver{address: u, form: f}, nil
}

func formOf(host string) form {
	switch {
	case strings.HasPrefix(host, "ntfy."):
		return asNtfy
	case host == "hooks.slack.com" || host == "hooks.slack-gov.com":
		return asSlack
	case host == "discord.com" || host == "discordapp.com" || strings.HasSuffix(host, ".discord.com"):
		return asDiscord
	}
	return asJSON
}

// String names the receiver without any secret: the host of an address, or the first word of a command.
func (r Receiver) String() string {
	if r.address == nil {
		word, _, _ := strings.Cut(strings.TrimSpace(r.command), " ")
		return "the command " + filepath.Base(word)
	}
	return r.address.Host + " (" + string(r.form) + ")"
}

// Expanded returns given with the lines of FILE in place of each @FILE. Empty lines and lines that begin with # are left out.
func Expanded(given []string) (all []string, err error) {
	for _, one := range given {
		file, is := strings.CutPrefix(one, "@")
		if !is {
			all = append(all, one)
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		all = append(all, Lines(string(text))...)
	}
	return all, nil
}

// Lines returns the receivers in a text with one in each line.
func Lines(text string) (all []string) {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			all = append(all, line)
		}
	}
	return all
}
