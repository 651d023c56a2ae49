package checkpoints

import (
	"io/fs"
	"syscall"
)

// fileID returns the inode of a file and the device that the inode is on. Both are 0 if they
// are not known.
func fileID(info fs.FileInfo) (inode, device uint64) {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return s.Ino, s.Dev
	}
	return 0, 0
}
