//go:build !linux

package child

import (
	"time"

	"headroom/runs"
)

func (Left) Runs() bool { return false }

func (Left) Holds([]string) string { return "" }

func End([]Left, time.Duration, func(error)) {}

func bootID() string { return "" }

func identified(runs.Process) (Left, bool) { return Left{}, false }

func marked(string, uint64) []Left { return nil }

// Identity is never reached, as there is no Child.
func (*Child) Identity() runs.Process { return runs.Process{} }
