package checkpoints

import (
	"io/fs"
	"path"
)

// folder is the part of a file system below a folder. Unlike the result of [fs.Sub], its Stat
// opens no file, as long as that of the whole file system opens none. Opening a named pipe
// would block until another process opens it, too.
type folder struct {
	files fs.FS
	at    string
}

// Open implements [fs.FS].
func (f folder) Open(name string) (fs.File, error) { return f.files.Open(path.Join(f.at, name)) }

// Stat implements [fs.StatFS].
func (f folder) Stat(name string) (fs.FileInfo, error) {
	return fs.Stat(f.files, path.Join(f.at, name))
}

// Lstat implements [fs.ReadLinkFS].
func (f folder) Lstat(name string) (fs.FileInfo, error) {
	return fs.Lstat(f.files, path.Join(f.at, name))
}

// ReadLink implements [fs.ReadLinkFS].
func (f folder) ReadLink(name string) (string, error) {
	return fs.ReadLink(f.files, path.Join(f.at, name))
}

// ReadDir implements [fs.ReadDirFS]. What is not a folder is not opened: a pattern may have
// any file where it expects a folder.
func (f folder) ReadDir(name string) ([]fs.DirEntry, error) {
	info, err := f.Stat(name)
	if err == nil && !info.IsDir() {
		err = &fs.PathError{Op: "readdir", Path: name, Err: fs.ErrInvalid}
	}
	if err != nil {
		return nil, err
	}
	return fs.ReadDir(f.files, path.Join(f.at, name))
}
