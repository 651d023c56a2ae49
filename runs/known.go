package runs

import (
	"time"

	"headroom/memory"
)

// Mark is what a wrapped command's checkpoint looked like at some time. It tells later
// whether the checkpoint has been written to since.
type Mark struct {
	Path string       `json:"path"`            // as in the command
	File uint64       `json:"inode,omitempty"` // of the file or folder; 0 if the file system has none
	Size memory.Bytes `json:"size"`            // of all its files
	Time time.Time    `json:"time"`            // when its newest file was last written, by the file system's clock
}

// Same reports whether m and other are the same checkpoint, unchanged. It may have another
// name, or, with the same name, have been copied back.
func (m Mark) Same(other Mark) bool {
	return m.Size == other.Size && m.Time.Equal(other.Time) && (m.Path == other.Path || m.File > 0 && m.File == other.File)
}

// Known is the content of known.json: the checkpoints that do not show by their own times and
// names whether a run may continue from them.
type Known struct {
	Before []Mark `json:"before"`           // were there before the run began
	Saved  []Mark `json:"saved,omitempty"`  // were saved during the run
	Failed []Mark `json:"failed,omitempty"` // the command could not resume from them

	// Shared is another run that has begun to keep its checkpoints in the same place, or "".
	// Certain has the checkpoints that were there before it did. Strange has those of earlier
	// processes of this run that such a run may have written.
	Shared  string `json:"shared,omitempty"`
	Certain []Mark `json:"certain,omitempty"`
	Strange []Mark `json:"strange,omitempty"`
}

// SetKnown replaces known.json, whole or not at all.
func (f *Folder) SetKnown(k Known) error { return f.setJSON("known.json", k, &f.known) }

// Known reads known.json. It returns nil without an error if there is no such file.
func (f *Folder) Known() (*Known, error) { return readJSON[Known](f.path("known.json")) }
