package checkpoints

import (
	"bytes"
	"encoding/binary"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"headroom/machine"
	"headroom/wrap/command"
)

// Writers notes which processes write files in the folder of the checkpoints. The kernel tells
// when a file there is written, and /proc which processes have it open at that moment. It costs
// nothing while nobody writes. A file that is written within a moment is missed, and so is one
// that another machine writes: then the writer stays unknown.
type Writers struct {
	root    string   // the folder that holds the checkpoints, without symbolic links in its path; it may not exist yet
	deeper  []string // pattern of the folders below root in which checkpoints are, by level
	events  *os.File
	watched map[int]string // folders, by the numbers of their watches

	mu   sync.Mutex // guards the fields below
	own  func(pid int) bool
	seen map[FileKey]*writing
}

// writing is what is known about the writing of a file.
type writing struct {
	own    bool // a process of the command has it open, or had
	other  int  // PID of another process that has, or had; 0 if there is none
	closed bool // it has been closed since
	tries  int  // how often its writer has been looked for in vain
}

const (
	mostWatches = 256
	// mostTries is how often a file's writer is looked for in vain. Each time, the files that
	// every process has open are listed.
	mostTries  = 5
	scanPause  = 20 * time.Millisecond // between two such lists
	onFolders  = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_ONLYDIR
	onWriting  = onFolders | unix.IN_MODIFY | unix.IN_CLOSE_WRITE
	eventBytes = 64 << 10
)

// Watch begins to watch the folder root, where the checkpoints match the pattern glob.
// It returns nil if that is not possible.
func Watch(root, glob string) *Writers {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil
	}
	levels := strings.Split(glob, "/")
	w := &Writers{root: command.Resolved(root), deeper: levels[:len(levels)-1], events: os.NewFile(uintptr(fd), "inotify"), watched: map[int]string{}, seen: map[FileKey]*writing{}}
	w.cover()
	go w.read(w.events)
	return w
}

// Follow makes the processes for which own returns true count as those of the command.
func (w *Writers) Follow(own func(pid int) bool) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.own = own
}

// Of implements [Past].Writer.
func (w *Writers) Of(file FileKey) (own bool, other int) {
	if w == nil {
		return false, 0
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if s := w.seen[file]; s != nil {
		return s.own, s.other
	}
	return false, 0
}

// Close ends the watch. w may be nil.
func (w *Writers) Close() {
	if w != nil {
		_ = w.events.Close()
	}
}

// cover watches the folders in which checkpoints may appear. As long as root does not exist,
// that is the nearest folder above it that does.
func (w *Writers) cover() {
	at := w.root
	for at != "/" {
		if info, err := os.Stat(at); err == nil && info.IsDir() {
			break
		}
		at = filepath.Dir(at)
	}
	if at != w.root {
		w.watch(at, onFolders)
		return
	}
	w.watch(at, onWriting)
	pattern := escaped(w.root)
	for _, level := range w.deeper {
		pattern = filepath.Join(pattern, level)
		folders, _ := filepath.Glob(pattern)
		for _, folder := range folders {
			w.watch(folder, onWriting)
		}
	}
}

func (w *Writers) watch(folder string, mask uint32) {
	if len(w.watched) >= mostWatches {
		return
	}
	raw, err := w.events.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { // an error means that the folder's writers stay unknown
		if id, err := unix.InotifyAddWatch(int(fd), folder, mask); err == nil {
			w.watched[id] = folder
		}
	})
}

// read handles the kernel's messages until events is closed.
func (w *Writers) read(events *os.File) {
	buffer := make([]byte, eventBytes)
	for {
		n, err := events.Read(buffer)
		if err != nil {
			return
		}
		look := false
		for at := 0; at+unix.SizeofInotifyEvent <= n; {
			id, mask := int(int32(binary.NativeEndian.Uint32(buffer[at:]))), binary.NativeEndian.Uint32(buffer[at+4:])
			length := int(binary.NativeEndian.Uint32(buffer[at+12:]))
			at += unix.SizeofInotifyEvent
			name := string(bytes.TrimRight(buffer[at:at+length], "\x00"))
			at += length
			if folder, known := w.watched[id]; known && name != "" && w.handle(filepath.Join(folder, name), mask) {
				look = true
			}
		}
		if look {
			w.look()
			time.Sleep(scanPause)
		}
	}
}

// handle notes a message about a path. It reports whether the path's writer is to be looked
// for.
func (w *Writers) handle(at string, mask uint32) bool {
	if mask&unix.IN_ISDIR != 0 {
		return w.folder(at)
	}
	if !strings.HasPrefix(at, w.root+"/") {
		return false
	}
	info, err := os.Stat(at)
	if err != nil || !info.Mode().IsRegular() {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	key := keyOf(info)
	s := w.seen[key]
	switch {
	case s == nil || mask&unix.IN_CREATE != 0: // the number of a file that was removed may be used again
		s = &writing{}
		w.seen[key] = s
	case mask&unix.IN_CLOSE_WRITE != 0:
		s.closed = true
		return false
	case s.closed && mask&unix.IN_MODIFY != 0: // opened again, perhaps by another process
		*s = writing{own: s.own, other: s.other}
		return true
	}
	return !s.own && s.other == 0 && s.tries < mostTries
}

// folder watches a new folder, if checkpoints may appear in it. It reports whether there are
// files in it already.
func (w *Writers) folder(at string) (files bool) {
	if strings.HasPrefix(w.root+"/", at+"/") {
		w.cover()
		at = w.root
	}
	if !strings.HasPrefix(at+"/", w.root+"/") {
		return false
	}
	_ = filepath.WalkDir(at, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
		case d.IsDir():
			w.watch(name, onWriting)
		case w.handle(name, unix.IN_MODIFY):
			files = true
		}
		return nil
	})
	return files
}

// look finds out which processes have files below root open for writing.
func (w *Writers) look() {
	open := OpenFor(w.root)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.seen {
		if !s.own && s.other == 0 {
			s.tries++
		}
	}
	for _, f := range open {
		s := w.seen[f.key]
		if s == nil {
			s = &writing{}
			w.seen[f.key] = s
		}
		switch {
		case w.own == nil:
		case w.own(f.pid):
			s.own = true
		case f.Still() && !w.own(f.pid): // not just ended, or handed over to this process
			s.other = f.pid
		}
	}
}

// Opened is a file that a process has open for writing.
type Opened struct {
	pid int
	machine.Descriptor
	key FileKey
}

// OpenFor lists the files below a folder that other processes have open for writing, as far
// as this process may know.
func OpenFor(folder string) (all []Opened) {
	for _, p := range machine.Processes() {
		if p.PID == os.Getpid() || p.Dead {
			continue
		}
		for _, d := range machine.Descriptors(p.PID) {
			if !strings.HasPrefix(d.Path, folder+"/") || !d.Writes() {
				continue
			}
			if info, err := os.Stat(d.Link); err == nil && info.Mode().IsRegular() {
				all = append(all, Opened{p.PID, d, keyOf(info)})
			}
		}
	}
	return all
}
