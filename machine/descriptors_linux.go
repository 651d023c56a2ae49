package machine

import (
	"os"
	"strconv"
)

// Descriptor is one of a process's open files.
type Descriptor struct {
	Number int
	Link   string // in /proc
	Path   string // of the file; of something else a text that begins with no slash
}

// Descriptors returns the open files of a process; none if it has ended or belongs to another user.
func Descriptors(pid int) (all []Descriptor) {
	folder := "/proc/" + strconv.Itoa(pid) + "/fd"
	files, _ := os.ReadDir(folder) // an error means that there is nothing to see
	for _, file := range files {
		link := folder + "/" + file.Name()
		number, err := strconv.Atoi(file.Name())
		path, failed := os.Readlink(link)
		if err == nil && failed == nil {
			all = append(all, Descriptor{number, link, path})
		}
	}
	return all
}

// Writes reports whether the file is open for writing: /proc shows that as the mode of the link.
func (d Descriptor) Writes() bool {
	info, err := os.Lstat(d.Link)
	return err == nil && info.Mode().Perm()&0o200 != 0
}

// Still reports whether the process exists and has the file open.
func (d Descriptor) Still() bool {
	path, err := os.Readlink(d.Link)
	return err == nil && path == d.Path
}
