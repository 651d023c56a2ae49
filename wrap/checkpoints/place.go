package checkpoints

import (
	"cmp"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"headroom/wrap/command"
	"headroom/wrap/rewrite"
)

// KeptElsewhereError says that another headroom process runs a command that keeps its
// checkpoints in the same place. The checkpoints cannot be told apart, so either command
// might resume from a checkpoint of the other.
type KeptElsewhereError struct {
	Place string // as in the command
	By    string // the other run
}

func (e *KeptElsewhereError) Error() string {
	return fmt.Sprintf("%s keeps its checkpoints in %s, too; give each command an output folder of its own", e.By, e.Place)
}

// keeps says where a run keeps its checkpoints, in a form that does not depend on the names by
// which the command reaches that place.
type keeps struct {
	PID   int
	Run   string
	Since int64 // when it was claimed, in Unix nanoseconds; 0 if it has not been yet

	// In has the folder of the checkpoints and the folders above it, as far as they exist. If
	// the folder is reached by several paths, it has those of each.
	In   []placed
	File []FileKey // the file that has all checkpoints, if there is just one name; it may have other names
}

// placed is a folder, and the pattern of the checkpoints below it.
type placed struct {
	Folder  FileKey
	Pattern string
}

// FileKey identifies a file or a folder, whatever its names.
type FileKey struct{ Device, Inode uint64 }

// meet reports whether the two places may have a file in common. has reports whether one of
// k's checkpoints is one of the given files.
func (k keeps) meet(other keeps, has func([]FileKey) bool) bool {
	for _, a := range k.In {
		for _, b := range other.In {
			if a.Folder == b.Folder && patternsMeet(a.Pattern, b.Pattern) {
				return true
			}
		}
	}
	return len(other.File) > 0 && has(other.File)
}

func (k keeps) who() string {
	return fmt.Sprintf("another headroom run (%s, process %d)", k.Run, k.PID)
}

// claimed returns where m's checkpoints are. It returns false if that is not known.
func claimed(m *rewrite.Match) (k keeps, ok bool) {
	layout := m.Profile.Checkpoints
	root, err := rewrite.Root(m)
	if layout.Glob == "" || err != nil || m.Given.Files == nil {
		return k, false
	}
	folder, pattern := m.Command.Abs(root), layout.Glob
	k.In = above(m, folder, pattern)
	if strings.ContainsAny(pattern, `*?[\`) {
		return k, len(k.In) > 0
	}
	whole := path.Join(folder, pattern)
	if info, err := fs.Stat(m.Given.Files, whole); err == nil {
		if key := keyOf(info); key.Inode > 0 {
			k.File = []FileKey{key}
		}
		if found, err := filepath.EvalSymlinks("/" + whole); err == nil { // it may be a link into another folder
			k.In = append(k.In, above(m, strings.TrimPrefix(path.Dir(found), "/"), escaped(path.Base(found)))...)
		}
	}
	return k, len(k.In) > 0
}

// above returns the folders from the one that has the checkpoints up to the root. A folder
// that does not exist yet is left out: the command will make it.
func above(m *rewrite.Match, folder, pattern string) (all []placed) {
	at := command.Resolved("/" + folder)
	for {
		if info, err := fs.Stat(m.Given.Files, cmp.Or(strings.TrimPrefix(at, "/"), ".")); err == nil && info.IsDir() {
			if key := keyOf(info); key.Inode > 0 {
				all = append(all, placed{key, pattern})
			}
		}
		if at == "/" {
			return all
		}
		pattern = path.Join(escaped(path.Base(at)), pattern)
		at = path.Dir(at)
	}
}

// escaped returns a pattern that matches only the given name.
func escaped(name string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(name)
}

func keyOf(info fs.FileInfo) FileKey {
	inode, device := fileID(info)
	return FileKey{device, inode}
}

// hasOne reports whether one of m's checkpoints is one of the files.
func hasOne(m *rewrite.Match, keys []FileKey) bool {
	n, err := NamesOf(m)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(n.names, func(name string) bool {
		info, err := fs.Stat(n.files, name)
		return err == nil && slices.Contains(keys, keyOf(info))
	})
}

// Place returns the folder in which the command keeps its checkpoints, without symbolic links. It
// returns "" if that is not known.
func Place(m *rewrite.Match) string {
	root, err := rewrite.Root(m)
	if err != nil || m.Profile.Checkpoints.Glob == "" {
		return ""
	}
	folder, _ := path.Split(root + "/" + m.Profile.Checkpoints.Glob)
	for strings.ContainsAny(folder, `*?[\`) {
		folder, _ = path.Split(strings.TrimSuffix(folder, "/"))
	}
	return command.Resolved(m.Command.From(folder))
}

// Absolute returns the folder of the checkpoints, as an absolute path, and their pattern in it.
func Absolute(m *rewrite.Match) (root, glob string) {
	root, err := rewrite.Root(m)
	if err != nil {
		return "", ""
	}
	return "/" + m.Command.Abs(root), m.Profile.Checkpoints.Glob
}
