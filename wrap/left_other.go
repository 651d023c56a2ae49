//go:build !linux

package wrap

import "time"

func (Left) runs() bool { return false }

func (Left) holds([]string) string { return "" }

func resolved(folder string) string { return folder }

func end([]Left, time.Duration, func(error)) {}
