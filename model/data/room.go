package data

import (
	"fmt"

	"headroom/memory"
)

// TooLargeError is data that would not fit into the memory there is. It is found
// by size, before anything is read: the system would end the process without a
// word.
type TooLargeError struct {
	Path  string
	Size  memory.Bytes // of what would be read
	Needs memory.Bytes // the memory that it takes
	Room  memory.Bytes // what there is
	Key   string       // the setting that reads less
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("%s: %v of data needs %v of memory, and %v is left; set %s to read less, give a smaller data.path, or run where there is more memory",
		e.Path, e.Size, e.Needs, e.Room, e.Key)
}

// fits refuses what needs more than room, if that is known.
func fits(e TooLargeError) error {
	if e.Room > 0 && e.Needs > e.Room {
		return &e
	}
	return nil
}
