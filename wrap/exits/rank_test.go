package exits

import (
	"strings"
	"testing"
	"time"

	"headroom/wrap/command"
)

const (
	oomText  = "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
	ncclText = "DistBackendError: NCCL communicator was aborted on rank 1."
)

// TestFirstRankByClock checks which of the ranks' error files counts: the earliest one
// whose error is not a consequence of another rank's failure.
func TestFirstRankByClock(t *testing.T) {
	noon := time.Date(2026, 10, 4, 12, 0, 0, 0, time.UTC)
	late := func(seconds int) time.Time { return noon.Add(time.Duration(seconds) * time.Second) }
	for _, c := range []struct {
		name  string
		ranks []command.RankError
		rank  int
		kind  Kind
	}{
		{"one", []command.RankError{{Rank: 3, Time: noon, Message: oomText}}, 3, OutOfMemory},
		{"the earlier one", []command.RankError{{Rank: 0, Time: late(2), Message: "ValueError: bad"}, {Rank: 1, Time: late(1), Message: oomText}}, 1, OutOfMemory},
		{"the earlier one is not memory", []command.RankError{{Rank: 0, Time: late(2), Message: oomText}, {Rank: 1, Time: late(1), Message: "ValueError: bad"}}, 1, Failed},
		{"a consequence is passed over", []command.RankError{{Rank: 0, Time: late(2), Message: oomText}, {Rank: 1, Time: late(1), Message: ncclText}}, 0, OutOfMemory},
		{"a clock that is an hour behind", []command.RankError{{Rank: 0, Time: late(-3600), Message: ncclText}, {Rank: 1, Time: late(-3599), Message: ncclText}, {Rank: 5, Time: late(4), Message: oomText}}, 5, OutOfMemory},
		{"without a time last", []command.RankError{{Rank: 0, Time: time.Time{}, Message: "ValueError: bad"}, {Rank: 1, Time: late(1), Message: oomText}}, 1, OutOfMemory},
		{"none has a time", []command.RankError{{Rank: 2, Time: time.Time{}, Message: oomText}, {Rank: 1, Time: time.Time{}, Message: "ValueError: bad"}}, 2, OutOfMemory},
		{"the same time", []command.RankError{{Rank: 7, Time: noon, Message: oomText}, {Rank: 1, Time: noon, Message: "ValueError: bad"}}, 7, OutOfMemory},
		{"an empty message", []command.RankError{{Rank: 0, Time: noon, Message: ""}, {Rank: 1, Time: late(1), Message: oomText}}, 1, OutOfMemory},
		{"consequences alone", []command.RankError{{Rank: 0, Time: noon, Message: ncclText}, {Rank: 1, Time: late(1), Message: ncclText}}, -1, Failed},
		{"the rank is not known", []command.RankError{{Rank: -1, Time: noon, Message: oomText}}, -1, OutOfMemory},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Classify(command.Exit{Code: 1, Ranks: c.ranks})
			if got.Rank != c.rank || got.Kind != c.kind {
				t.Errorf("rank %d, %s: %q; want rank %d, %s", got.Rank, got.Kind, got.Reasons, c.rank, c.kind)
			}
		})
	}
}

// TestRecordTakesTracebackOfItsRank checks that an error from an error file, which has no
// traceback, gets the traceback from the output of the same rank.
func TestRecordTakesTracebackOfItsRank(t *testing.T) {
	text := tracebackOf(at("train.py", "main", "loss.backward()"), at(site+"torch/autograd/graph.py", "_engine_run_backward", "return run_backward("))
	got := Classify(command.Exit{
		Code: 1, Ranks: []command.RankError{{Rank: 1, Time: time.Unix(1, 0), Message: oomText}},
		Tail: []byte("[rank1]: " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n[rank1]: ")),
	})
	if got.Kind != OutOfMemory || got.Confidence != Certain || got.Evidence.Failure.Phase != "backward" {
		t.Errorf("%+v, %+v", got, got.Evidence)
	}
}

// TestFirstRankByText checks which of several ranks that ran out of memory counts: the one
// whose error is printed first, unless torchrun names another one.
func TestFirstRankByText(t *testing.T) {
	both := "[rank2]: Traceback (most recent call last):\n[rank1]: Traceback (most recent call last):\n" +
		"[rank1]: torch." + oomText + "\n[rank2]: torch." + oomText + "\n"
	if got := Classify(command.Exit{Code: 1, Tail: []byte(both)}); got.Rank != 1 {
		t.Errorf("rank %d, want 1", got.Rank)
	}
	named := both + "Root Cause (first observed failure):\n[0]:\n  rank      : 2 (local_rank: 2)\n  exitcode  : 1 (pid: 9)\n"
	if got := Classify(command.Exit{Code: 1, Tail: []byte(named)}); got.Rank != 2 {
		t.Errorf("rank %d, want 2, which torchrun names", got.Rank)
	}
}
