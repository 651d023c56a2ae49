package wraptest

import (
	"strings"

	"headroom/wrap/command"
)

// Typed returns the command that a shell would run if line were typed in the folder
// /work. It understands only single quotes.
func Typed(line string) command.Line {
	var args []string
	for i, part := range strings.Split(line, "'") {
		if i%2 == 1 {
			args[len(args)-1] += part
			continue
		}
		fields := strings.Fields(part)
		if i > 0 && part != "" && part[0] != ' ' && len(fields) > 0 {
			args[len(args)-1] += fields[0]
			fields = fields[1:]
		}
		args = append(args, fields...)
		if strings.HasSuffix(part, " ") {
			args = append(args, "")
		}
	}
	var kept []string
	for _, arg := range args {
		if arg != "" {
			kept = append(kept, arg)
		}
	}
	return command.Line{Args: kept, Dir: "/work"}
}
