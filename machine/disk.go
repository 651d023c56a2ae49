package machine

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"headroom/memory"
)

// disk returns the free space and the number of free inodes of the file system that dir
// is on or would be created on. Both are 0 if the file system does not report them.
// failure says why no file can be created there, or is "" if one can. To find out, disk
// creates a file and removes it.
func disk(dir string) (free memory.Bytes, inodes int64, failure string) {
	at := existing(dir)
	var s unix.Statfs_t
	if err := unix.Statfs(at, &s); err == nil {
		free, inodes = memory.Bytes(s.Bavail)*memory.Bytes(s.Bsize), int64(s.Ffree)
	}
	f, err := os.CreateTemp(at, ".headroom-doctor-*")
	if err != nil {
		return free, inodes, err.Error()
	}
	_ = f.Close()
	if err := os.Remove(f.Name()); err != nil {
		return free, inodes, err.Error()
	}
	return free, inodes, ""
}

// DiskFree returns the free space of the file system that dir is on or would be created
// on. known is false if the file system does not report it.
func DiskFree(dir string) (free memory.Bytes, known bool) {
	var s unix.Statfs_t
	if err := unix.Statfs(existing(dir), &s); err != nil {
		return 0, false
	}
	return memory.Bytes(s.Bavail) * memory.Bytes(s.Bsize), true
}

// existing returns dir if it is a folder, and otherwise the nearest folder above it that
// exists.
func existing(dir string) string {
	for {
		if info, err := os.Stat(dir); err == nil && info.IsDir() || dir == filepath.Dir(dir) {
			return dir
		}
		dir = filepath.Dir(dir)
	}
}
