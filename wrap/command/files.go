package command

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
)

// Special says that something is neither a file nor a folder. It returns "" for files and
// folders. Opening a pipe may block for ever, and opening a device may change its state, so
// nothing of this kind is ever opened.
func Special(mode fs.FileMode) string {
	for _, kind := range []struct {
		mode fs.FileMode
		name string
	}{{fs.ModeNamedPipe, "a named pipe"}, {fs.ModeSocket, "a socket"}, {fs.ModeDevice, "a device"}, {fs.ModeCharDevice, "a device"}, {fs.ModeIrregular, "of an unknown kind"}} {
		if mode&kind.mode != 0 {
			return "is " + kind.name + ", not a file"
		}
	}
	return ""
}

// OpenFile opens a file of any kind but the special ones. files must follow links in Stat.
func OpenFile(files fs.FS, name string) (fs.File, fs.FileInfo, error) {
	info, err := fs.Stat(files, name)
	if err != nil {
		return nil, nil, err
	}
	if what := Special(info.Mode()); what != "" {
		return nil, nil, fmt.Errorf("%s %s", name, what)
	}
	f, err := files.Open(name)
	return f, info, err
}

// Resolved returns the absolute path without the symbolic links in it, as /proc shows paths, even if not all of it exists.
func Resolved(at string) string {
	if whole, err := filepath.Abs(at); err == nil {
		at = whole
	}
	rest := ""
	for range 255 { // more links than the kernel follows
		found, err := filepath.EvalSymlinks(at)
		if err == nil {
			return path.Join(found, rest)
		}
		if to, err := filepath.EvalSymlinks(path.Dir(at)); err == nil { // a link that leads nowhere yet
			if link, err := os.Readlink(path.Join(to, path.Base(at))); err == nil {
				if at = link; !path.IsAbs(link) {
					at = path.Join(to, link)
				}
				continue
			}
		}
		rest = path.Join(path.Base(at), rest)
		at = path.Dir(at)
	}
	return path.Join(at, rest)
}

// MaxDocument is the largest size of a file that is read, in bytes. It is far above the
// size of any configuration, and keeps a wrong path from filling memory.
const MaxDocument = 4 << 20

// ErrTooLarge is returned by [ReadFile] for a file that is larger than [MaxDocument].
var ErrTooLarge = errors.New("too large")

// ReadFile returns the content of a file that is not special and has at most MaxDocument bytes. So
// a pipe keeps its content for the command that is to read it.
func ReadFile(files fs.FS, name string) ([]byte, error) {
	f, _, err := OpenFile(files, name)
	if err != nil {
		return nil, err
	}
	content, err := io.ReadAll(io.LimitReader(f, MaxDocument+1))
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	if len(content) > MaxDocument {
		return nil, ErrTooLarge
	}
	return content, nil
}
