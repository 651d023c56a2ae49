package data

import (
	"fmt"

	"headroom/memory"
)

// TooLargeError reports that data would not fit into the memory that is left.
// The size is checked before any data is read. Without this check, the system
// might kill the process without an error message.
type TooLargeError struct {
	Path  string
	Size  memory.Bytes // size of the data that would be read
	Needs memory.Bytes // memory that reading it takes
	Room  memory.Bytes // memory that is left
	Key   string       // the setting that makes a run read less
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("%s: %v of data needs %v of memory, but only %v is left; set %s to read less, point data.path at less data, or run where there is more memory",
		e.Path, e.Size, e.Needs, e.Room, e.Key)
}

// fits returns e as an error if Room is known and less than Needs.
func fits(e TooLargeError) error {
	if e.Room > 0 && e.Needs > e.Room {
		return &e
	}
	return nil
}
