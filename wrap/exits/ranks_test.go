package exits

import (
	"reflect"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"headroom/wrap/command"
)

func TestReadRankErrors(t *testing.T) {
	const late = `{"message": {"message": "RuntimeError: NCCL communicator was aborted", "extraInfo": {"py_callstack": "Traceback", "timestamp": "1690000009"}}}`
	const root = `{"message": {"message": "OutOfMemoryError: CUDA out of memory.", "extraInfo": {"py_callstack": "Traceback", "timestamp": "1690000000"}}}`
	logs := fstest.MapFS{
		"none_x1/attempt_0/0/error.json":  {Data: []byte(late)},
		"none_x1/attempt_0/0/stderr.log":  {Data: []byte("{")},
		"none_x1/attempt_0/3/error.json":  {Data: []byte(root)},
		"none_x1/attempt_0/11/error.json": {Data: []byte(`{"message": "ChildFailedError"}`), ModTime: time.Unix(1690000005, 0).UTC()},
		"none_x1/attempt_0/12/error.json": {Data: []byte(`{"message": {"message": "as a number", "extraInfo": {"timestamp": 1690000010.5}}}`)},
		"none_x1/attempt_0/13/error.json": {Data: []byte(`{"message": {"message": "cut o`)},
		"none_x1/attempt_0/14/error.json": {Data: nil},
		"none_x1/attempt_0/15/error.json": {Data: []byte(`{"other": 1}`)},
		"none_x1/attempt_0/16/error.json": {Data: []byte(`{"message": [1]}`)},
		"single/error.json":               {Data: []byte(`{"message": "no rank"}`), ModTime: time.Unix(1690000011, 0).UTC()},
	}
	got, notes := ReadRankErrors(logs)
	at := func(s int64, ms int64) time.Time { return time.Unix(s, ms*1e6).UTC() }
	want := []command.RankError{
		{Rank: 3, Time: at(1690000000, 0), Message: "OutOfMemoryError: CUDA out of memory."},
		{Rank: 11, Time: at(1690000005, 0), Message: "ChildFailedError"},
		{Rank: 0, Time: at(1690000009, 0), Message: "RuntimeError: NCCL communicator was aborted"},
		{Rank: 12, Time: at(1690000010, 500), Message: "as a number"},
		{Rank: -1, Time: at(1690000011, 0), Message: "no rank"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
	if len(notes) != 4 {
		t.Fatalf("notes %q, want four", notes)
	}
	for i, rank := range []string{"13", "14", "15", "16"} {
		if !strings.HasPrefix(notes[i], "none_x1/attempt_0/"+rank+"/error.json: ") {
			t.Errorf("note %d: %q", i, notes[i])
		}
	}
}

func TestNoRankErrors(t *testing.T) {
	if got, notes := ReadRankErrors(fstest.MapFS{}); got != nil || notes != nil {
		t.Errorf("%v, %q of an empty folder", got, notes)
	}
}
