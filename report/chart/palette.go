package chart

import (
	"fmt"
	"strings"
	"sync"

	"headroom/memory"
)

// shade is one colour of the pictures, in a light and a dark variant. Pictures refer to
// it by a CSS variable, so that the same picture serves both schemes.
type shade struct {
	name, light, dark string
}

// The shades. Lines also differ in lightness, so that they can be told apart without
// colour and in print.
var shades = []shade{
	{"ink", "#1c2127", "#e8eaed"},
	{"muted", "#59616b", "#a3abb5"},
	{"grid", "#e3e6ea", "#31373e"},
	{"paper", "#ffffff", "#171a1e"},
	{"blue", "#1f6fd0", "#5a9df0"},
	{"bluefill", "#dbe8f8", "#1f3049"},
	{"teal", "#0b7456", "#3fbf95"},
	{"violet", "#6a4bc4", "#a48cf2"},
	{"violetfill", "#e6e0f6", "#2d2646"},
	{"red", "#c8322f", "#f0716c"},
	{"orange", "#c2570c", "#ef9150"},
	{"magenta", "#b0317f", "#e77fbb"},
	{"brown", "#84611a", "#cfa95a"},
}

// CauseShade returns the name of the shade for failures with the given cause.
func CauseShade(c memory.Cause) string {
	switch c {
	case memory.Foreign:
		return "violet"
	case memory.Spike:
		return "orange"
	case memory.Fragmentation:
		return "magenta"
	case memory.Leak:
		return "brown"
	case memory.Host, memory.Unknown, "":
		return "muted"
	}
	return "red" // batch, model
}

// paint returns the SVG style that sets a property to a shade. The light colour comes
// first, for programs that do not know CSS variables.
func paint(property, shade string) string {
	for _, s := range shades {
		if s.name == shade {
			return fmt.Sprintf("%s:%s;%s:var(--%s)", property, s.light, property, s.name)
		}
	}
	panic("chart: no shade " + shade)
}

// onlyVariables removes from styles the colours that paint adds for programs without CSS
// variables.
var onlyVariables = sync.OnceValue(func() *strings.Replacer {
	var pairs []string
	for _, s := range shades {
		for _, property := range []string{"fill", "stroke"} {
			pairs = append(pairs, paint(property, s.name), fmt.Sprintf("%s:var(--%s)", property, s.name))
		}
	}
	return strings.NewReplacer(pairs...)
})

// Variables returns the CSS variables of the light or the dark scheme.
func Variables(dark bool) string {
	var b strings.Builder
	for _, s := range shades {
		value := s.light
		if dark {
			value = s.dark
		}
		fmt.Fprintf(&b, "--%s:%s;", s.name, value)
	}
	return b.String()
}
