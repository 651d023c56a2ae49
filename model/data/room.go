package data

import (
	"fmt"

	"headroom/memory"
)

// TooLargeError means that data would not fit into the memory that is left. This
// is found from its size, before anything is read, because the system would
// otherwise kill the process without a word.
type TooLargeError struct {
	Path  string
	Size  memory.Bytes // of the data that would be read
	Needs memory.Bytes // the memory that it takes
	Room  memory.Bytes // the memory that is left
	Key   string       // the setting that makes a run read less
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("%s: %v of data needs %v of memory, and %v is left; set %s to read less, point data.path at less data, or run where there is more memory",
		e.Path, e.Size, e.Needs, e.Room, e.Key)
}

// fits refuses data that needs more than Room, if that is known.
func fits(e TooLargeError) error {
	if e.Room > 0 && e.Needs > e.Room {
		return &e
	}
	return nil
}
