package checkpoints

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"headroom/runs"
	"headroom/wrap/rewrite"
)

// Names are the names of a command's checkpoints, as they were when they were looked for.
type Names struct {
	root  string   // the folder that holds the checkpoints, spelled as in the command
	files fs.FS    // the files in that folder; nil if no files can be read
	names []string // of the files and folders in it that match the pattern of checkpoints
}

// NamesOf looks for the names of m's checkpoints. The error is a *[rewrite.ResumeError] or a
// *[rewrite.KnobError] if it is not known where they are.
func NamesOf(m *rewrite.Match) (n Names, err error) {
	layout := m.Profile.Checkpoints
	if layout.Glob == "" {
		return n, &rewrite.ResumeError{Reason: m.Profile.Name + " does not say where checkpoints are; name them with --knob checkpoints=GLOB"}
	}
	if n.root, err = rewrite.Root(m); err != nil || m.Given.Files == nil {
		return n, err
	}
	n.files = folder{m.Given.Files, m.Command.Abs(n.root)}
	if n.names, err = fs.Glob(n.files, layout.Glob); err != nil {
		return n, fmt.Errorf("look for checkpoints: %w", err)
	}
	n.names = slices.DeleteFunc(n.names, func(name string) bool { return strings.HasPrefix(path.Base(name), ".headroom-") })
	return n, nil
}

// Known reports whether the names could be looked for at all.
func (n Names) Known() bool { return n.files != nil }

// Marks returns what the checkpoints look like now. It reads the folders among them.
func (n Names) Marks() []runs.Mark {
	marks := make([]runs.Mark, len(n.names))
	for i, name := range n.names {
		c, _ := glance(n.files, n.root, name)
		marks[i] = c.Mark()
	}
	return marks
}
