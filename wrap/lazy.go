package wrap

import (
	"regexp"
	"sync"
)

// lazyRegexp is a regular expression that is compiled when it is first needed.
// Most are for the end of a command that failed, and all of them together would cost
// every start 5 ms. Safe for concurrent use.
type lazyRegexp func() *regexp.Regexp

// lazily panics at the first call if the expression is not a valid one.
func lazily(expression string) lazyRegexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expression) })
}
