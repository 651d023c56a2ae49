package worker

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"headroom/memory"
)

// alike lists, for each kind of holder, the rules about scripts that speak of the same mistake.
var alike = map[string][]string{
	"collected":      {"kept-tensor", "outlives-epoch"},
	"sum":            {"summed-tensor"},
	"retained-graph": {"kept-tensor", "retained-graph"},
	"hidden-state":   {"retained-graph"},
	"evaluation":     {"kept-tensor", "evaluation-with-gradients"},
	"moved":          {"kept-tensor"},
	"gradients":      {"retained-graph", "no-zero-grad"},
}

// Joined makes one of what holds memory that grows, as a process has found it, and what was read in its
// script. It returns the index of the finding that speaks of the same, or -1 if none does, and h with what
// that finding says to write where h itself only says in general what helps. dir is the folder to which
// relative files belong.
func Joined(h memory.Holder, found []Finding, dir string) (memory.Holder, int) {
	same := slices.IndexFunc(found, func(f Finding) bool { return speaks(f, h, dir) })
	if same < 0 {
		return h, same
	}
	f := found[same]
	if general := slices.Contains([]string{"collected", "sum", "moved"}, h.Kind) && !strings.HasPrefix(h.Cure, "write "); general && f.Name != "" {
		h.Cure = fmt.Sprintf("in place of line %d: %s", f.Line, f.Instead)
	}
	return h, same
}

// speaks reports whether f speaks of the line or the variable that h names. A rule about a call speaks of
// the whole file: a process does not know in which line a graph was left.
func speaks(f Finding, h memory.Holder, dir string) bool {
	file, kept, made := within(f.File, dir), within(h.Kept, dir), within(h.Made, dir)
	line := fmt.Sprintf("%s:%d", file, f.Line)
	variable, _, _ := strings.Cut(h.Name, "[")
	switch {
	case !slices.Contains(alike[h.Kind], f.Rule):
		return false
	case line == kept || line == made:
		return true
	case !strings.HasPrefix(kept, file+":") || f.Rule == "evaluation-with-gradients":
		return false
	}
	return f.Name == "" || f.Name == variable
}

// within returns a file that belongs to dir, perhaps with a line, as an absolute path.
func within(file, dir string) string {
	if file == "" || filepath.IsAbs(file) {
		return file
	}
	return filepath.Join(dir, file)
}
