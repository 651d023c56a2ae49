package exits

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"headroom/wrap/command"
)

// errorFile is the name of the file to which torch.distributed.elastic writes a worker's
// exception, at .../attempt_N/RANK/error.json.
const errorFile = "error.json"

// ReadRankErrors reads every error file of a launcher below a log folder, and returns the
// errors with the earliest first. The earliest is usually the root cause, and the others
// its effects on other ranks. A rank is taken from the name of the file's folder, which
// torchrun counts from 0 on each machine; it is -1 if that name is not a number. notes
// has one line for each file that is not understood and for each folder that cannot be
// read.
func ReadRankErrors(logs fs.FS) (ranks []command.RankError, notes []string) {
	_ = fs.WalkDir(logs, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			notes = append(notes, fmt.Sprintf("%s: %v", name, err))
		case !entry.IsDir() && path.Base(name) == errorFile:
			rank, err := readRankError(logs, name)
			if err != nil {
				notes = append(notes, fmt.Sprintf("%s: %v", name, err))
				break
			}
			ranks = append(ranks, rank)
		}
		return nil // the rest of the folder is read anyway
	})
	slices.SortStableFunc(ranks, func(a, b command.RankError) int { return a.Time.Compare(b.Time) })
	return ranks, notes
}

func readRankError(logs fs.FS, name string) (command.RankError, error) {
	r := command.RankError{Rank: -1}
	text, err := command.ReadFile(logs, name)
	if err != nil {
		return r, err
	}
	if r.Message, r.Time, err = parseRankError(text); err != nil {
		return r, err
	}
	if rank, err := strconv.Atoi(path.Base(path.Dir(name))); err == nil && rank >= 0 {
		r.Rank = rank
	}
	if r.Time.IsZero() {
		if info, err := fs.Stat(logs, name); err == nil {
			r.Time = info.ModTime()
		}
	}
	return r, nil
}

// parseRankError parses {"message": TEXT} and {"message": {"message": TEXT,
// "extraInfo": {"timestamp": SECONDS}}}, with the seconds as text or as a number.
// at is the zero time if there is no timestamp.
func parseRankError(text []byte) (message string, at time.Time, err error) {
	var outer struct{ Message json.RawMessage }
	if err := json.Unmarshal(text, &outer); err != nil {
		return "", at, err
	}
	if len(outer.Message) == 0 || bytes.Equal(outer.Message, []byte("null")) {
		return "", at, fmt.Errorf("no message")
	}
	if json.Unmarshal(outer.Message, &message) == nil {
		return message, at, nil
	}
	var inner struct {
		Message   string
		ExtraInfo struct{ Timestamp json.RawMessage }
	}
	if err := json.Unmarshal(outer.Message, &inner); err != nil {
		return "", at, err
	}
	seconds, err := strconv.ParseFloat(strings.Trim(string(inner.ExtraInfo.Timestamp), `"`), 64)
	if err == nil && seconds > 0 && seconds < 1e11 {
		at = time.UnixMilli(int64(seconds * 1000)).UTC()
	}
	return inner.Message, at, nil
}
