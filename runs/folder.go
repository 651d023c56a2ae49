package runs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Folder is a run's folder, held by this process until Close:
//
//	run.yaml                the resolved configuration
//	secrets.json            the command with its secrets, if it has any; run.yaml has "***" in their place
//	journal.jsonl           one [Entry] per line, fsynced (see [Folder.Record])
//	metrics.jsonl           one [StepReport] per line; for a wrapped command, one [ProcessStep]
//	checkpoints/step-000200/
//	logs/attempt-001.log
//	learned.json            a [Learned] that may not be in any checkpoint yet
//	known.json              a [Known], for a wrapped command
//	status.json             a [Status], replaced atomically
//	report.html report.md   generated from the files above
//	lock
//
// Its methods may be called from several goroutines.
type Folder struct {
	dir  string
	disk Disk
	lock *os.File

	mu       sync.Mutex // guards the fields below, and lock
	config   []byte     // content of run.yaml; nil if there is none
	learned  []byte     // content of learned.json; nil if there is none
	known    []byte     // content of known.json; nil if there is none
	secrets  []byte     // content of secrets.json; nil if there is none
	remade   bool       // somebody has removed the lock file, and perhaps more, and it was made again
	journal  *lines
	metrics  *lines
	tally    Tally
	unsynced []string // files and folders that have to reach the disk before anything that relies on them
	repairs  []string // what opening the folder had to repair
	ended    bool     // the lock file has the state in which the run has ended, since status.json could not be written
	removals []string // what somebody removed while this process held the folder
}

// Open creates dir if it is missing, takes its lock and repairs what a killed run left
// behind, such as a torn last line or half a checkpoint. The folder above dir must
// exist. If a live run has locked the folder, the error is a *[LockedError]. It is also
// an error if the folder cannot be written to, or if it holds something other than a
// run.
func Open(dir string) (*Folder, error) { return OpenOn(dir, OSDisk{}) }

// OpenOn is [Open] on a given [Disk], such as a test's disk on which some calls fail.
func OpenOn(dir string, d Disk) (*Folder, error) {
	if err := makeFolder(dir, d); err != nil {
		return nil, fmt.Errorf("open run folder %s: %w", dir, err)
	}
	lock, err := takeLock(dir)
	if locked := (*LockedError)(nil); errors.As(err, &locked) {
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("open run folder %s: cannot write to it: %w", dir, err)
	}
	return openLocked(dir, d, lock)
}

func openLocked(dir string, d Disk, lock *os.File) (*Folder, error) {
	f := &Folder{dir: dir, disk: d, lock: lock, tally: Tally{Checkpoint: -1}}
	if err := f.open(); err != nil {
		return nil, fmt.Errorf("open run folder %s: %w", dir, errors.Join(err, lock.Close()))
	}
	return f, nil
}

// Inherit is [Open] for a program that takes over the folder from the program that executed
// it. lock is the file descriptor that [Folder.HandOver] left open.
func Inherit(dir string, lock int) (*Folder, error) {
	unix.CloseOnExec(lock)
	file := os.NewFile(uintptr(lock), filepath.Join(dir, "lock")) // nil if lock is negative; every call on a nil file returns an error
	if err := lockMeant(dir, file); err != nil {
		return nil, fmt.Errorf("open run folder %s: take over its lock: %w", dir, errors.Join(err, file.Close()))
	}
	return openLocked(dir, OSDisk{}, file)
}

func makeFolder(dir string, d Disk) error {
	info, err := os.Stat(dir)
	switch {
	case err == nil && !info.IsDir():
		return errors.New("it is a file; name a folder, such as runs/gpt")
	case err == nil:
		return checkOurs(dir)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	above := filepath.Dir(filepath.Clean(dir))
	if info, err := os.Stat(above); err != nil || !info.IsDir() {
		return fmt.Errorf("there is no folder %s; create it first, or check the spelling", above)
	}
	return d.Mkdir(dir)
}

// NodesFolder is the folder in a run's folder where the nodes of a command tell each other what they do.
// It may be there before the run is.
const NodesFolder = "nodes"

// checkOurs returns an error if the folder holds something other than a run. A run must
// not mix its files with a user's, not least because a fresh start renames the whole
// folder.
func checkOurs(dir string) error {
	held, err := os.ReadDir(dir)
	if err != nil || len(held) == 0 {
		return err
	}
	for _, e := range held {
		switch e.Name() {
		case "lock", "run.yaml", "journal.jsonl", NodesFolder:
			return nil
		}
	}
	return fmt.Errorf("it holds %s but no run; name an empty or new folder", held[0].Name())
}

// open creates the inner folders, removes unfinished files, reads the journal and opens the
// files for appending.
func (f *Folder) open() error {
	if err := f.inner(); err != nil {
		return err
	}
	f.config, _ = f.Config() // whoever needs them reports that they cannot be read
	f.learned, _ = os.ReadFile(f.path("learned.json"))
	f.known, _ = os.ReadFile(f.path("known.json"))
	f.secrets, _ = os.ReadFile(f.path(secretsFile))
	if err := errors.Join(f.clear(f.dir), f.clear(f.path("checkpoints"))); err != nil {
		return err
	}
	entries, err := ReadJournal(f.dir)
	if torn := (*TornError)(nil); err != nil && !errors.As(err, &torn) {
		return err
	}
	for _, e := range entries {
		f.tally.count(e)
	}
	if f.journal, err = f.openLines("journal.jsonl"); err != nil {
		return err
	}
	if len(entries) > 0 {
		f.journal.begins(entries[0]) // when the run began tells its checkpoints from those of others
	}
	if f.metrics, err = f.openLines("metrics.jsonl"); err != nil {
		return errors.Join(err, f.journal.close())
	}
	f.unsynced = append(f.unsynced, f.dir)
	return nil
}

func (f *Folder) openLines(name string) (*lines, error) {
	l, cut, err := openLines(f.disk, f.path(name))
	if cut > 0 {
		f.repairs = append(f.repairs, fmt.Sprintf("%s: cut off an incomplete last line of %d bytes", name, cut))
	}
	return l, err
}

// clear removes what a killed run left unfinished in dir: the files and folders with temporary
// names, which begin with a dot and end in .tmp.
func (f *Folder) clear(dir string) error {
	held, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range held {
		if !strings.HasPrefix(e.Name(), ".") || !strings.HasSuffix(e.Name(), ".tmp") {
			continue
		}
		if err := f.disk.Remove(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
		f.repairs = append(f.repairs, fmt.Sprintf("removed the unfinished %s", e.Name()))
	}
	return nil
}

// Dir returns the folder's path, as it was given.
func (f *Folder) Dir() string { return f.dir }

func (f *Folder) path(name ...string) string {
	return filepath.Join(append([]string{f.dir}, name...)...)
}

// Config reads run.yaml, the resolved configuration of the run. If there is no run.yaml
// yet, the error wraps [fs.ErrNotExist].
func (f *Folder) Config() ([]byte, error) { return os.ReadFile(f.path("run.yaml")) }

// TakeRepairs returns what [Open] had to repair after a killed run, one sentence for
// each repair. Only the first call returns them.
func (f *Folder) TakeRepairs() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	repairs := f.repairs
	f.repairs = nil
	return repairs
}

// TakeRemovals returns one sentence for each file of the run that somebody removed or
// replaced since the last call.
func (f *Folder) TakeRemovals() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range []*lines{f.journal, f.metrics} {
		if l.removed {
			l.removed = false
			f.removals = append(f.removals, filepath.Base(l.path)+" was removed or replaced while the run was writing to it: its earlier content is missing from reports")
		}
	}
	removals := f.removals
	f.removals = nil
	return removals
}

// AttemptLog opens logs/attempt-NNN.log for appending. The caller closes the file.
func (f *Folder) AttemptLog(attempt int) (*os.File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var file *os.File
	err := f.kept(func() (err error) {
		file, err = os.OpenFile(f.path("logs", LogName(attempt)), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
		return err
	})
	return file, err
}

// LogName returns the base name of an attempt's log.
func LogName(attempt int) string { return fmt.Sprintf("attempt-%03d.log", attempt) }

// Close writes the lines that are still waiting in memory and releases the folder. After
// an error, lines of the journal or the metrics may be lost.
func (f *Folder) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.kept(func() error { return errors.Join(f.settle(), f.metrics.flush(true), f.journal.flush(true)) })
	if errors.As(err, new(*LockedError)) { // what waits in memory belongs to no folder any more
		err = nil
	}
	err = errors.Join(err, f.metrics.file.Close(), f.journal.file.Close(), f.lock.Close())
	if err != nil {
		return fmt.Errorf("close run folder %s: %w", f.dir, err)
	}
	return nil
}

// HandOver is [Folder.Close], except that the folder stays locked, through the returned lock.
// If this process executes another program, the lock stays open in that program, which passes
// the descriptor of the lock to [Inherit]. Otherwise the caller closes the lock.
func (f *Folder) HandOver() (lock *os.File, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, inherit := unix.FcntlInt(f.lock.Fd(), unix.F_SETFD, 0)
	if err := errors.Join(f.settle(), f.metrics.close(), f.journal.close(), inherit); err != nil {
		return f.lock, fmt.Errorf("hand over run folder %s: %w", f.dir, err)
	}
	return f.lock, nil
}

// SetAside makes room for a fresh start: it renames the run folder dir to the first of the
// names dir.1, dir.2 and so on that is free, and returns the new name. If the folder is
// missing or empty, it renames nothing and returns "". If a live run has locked the folder,
// the error is a *[LockedError].
func SetAside(dir string) (string, error) {
	dir = filepath.Clean(dir)
	held, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(held) == 0 {
		return "", nil
	}
	if err == nil {
		err = checkOurs(dir)
	}
	if err != nil {
		return "", fmt.Errorf("set aside run folder %s: %w", dir, err)
	}
	lock, err := takeLock(dir)
	if err != nil {
		return "", err
	}
	to, err := renameFree(OSDisk{}, dir, dir, 1)
	return to, errors.Join(err, lock.Close())
}

// renameFree renames from to the first of the names base.n, base.n+1 and so on that is
// free, and returns that name. If n is 0, it tries base itself first.
func renameFree(d Disk, from, base string, n int) (string, error) {
	for ; ; n++ {
		to := base
		if n > 0 {
			to = fmt.Sprintf("%s.%d", base, n)
		}
		_, err := os.Lstat(to)
		if errors.Is(err, fs.ErrNotExist) {
			return to, d.Rename(from, to)
		}
		if err != nil {
			return "", err
		}
	}
}
