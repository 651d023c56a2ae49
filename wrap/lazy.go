package wrap

import (
	"regexp"
	"sync"
)

// lazyRegexp is a regular expression that is compiled when it is first needed.
// Most are needed only after a command has failed, and compiling all of them would add
// 5 ms to every start. It is safe for concurrent use.
type lazyRegexp func() *regexp.Regexp

// lazily returns a lazyRegexp for expression. If expression is invalid, lazily itself
// does not panic, but calling the lazyRegexp does.
func lazily(expression string) lazyRegexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expression) })
}
