package wrap

import (
	"os"
	"strconv"
)

// descriptor is one of a process's open files.
type descriptor struct {
	number int
	link   string // in /proc
	path   string // of the file; of something else a text that begins with no slash
}

// descriptors returns the open files of a process; none if it has ended or belongs to another user.
func descriptors(pid int) (all []descriptor) {
	folder := "/proc/" + strconv.Itoa(pid) + "/fd"
	files, _ := os.ReadDir(folder) // an error means that there is nothing to see
	for _, file := range files {
		link := folder + "/" + file.Name()
		number, err := strconv.Atoi(file.Name())
		path, failed := os.Readlink(link)
		if err == nil && failed == nil {
			all = append(all, descriptor{number, link, path})
		}
	}
	return all
}

// writes reports whether the file is open for writing: /proc shows that as the mode of the link.
func (d descriptor) writes() bool {
	info, err := os.Lstat(d.link)
	return err == nil && info.Mode().Perm()&0o200 != 0
}

// still reports whether the process exists and has the file open.
func (d descriptor) still() bool {
	path, err := os.Readlink(d.link)
	return err == nil && path == d.path
}
