package command

import (
	"path"
	"strings"
)

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
