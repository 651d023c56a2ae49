package wrap

import (
	"regexp"
	"sync"
)

// lazyRegexp is a regular expression that is compiled when it is first needed.
// Most are needed only once a command has failed, and compiling all of them would add
// 5 ms to every start. Safe for concurrent use.
type lazyRegexp func() *regexp.Regexp

// lazily makes a lazyRegexp, whose first call panics if the expression is invalid.
func lazily(expression string) lazyRegexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expression) })
}
