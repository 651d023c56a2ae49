package wrap

import (
	"strings"
	"testing"
	"time"
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
		ranks []RankError
		rank  int
		kind  Kind
	}{
		{"one", []RankError{{3, noon, oomText}}, 3, OutOfMemory},
		{"the earlier one", []RankError{{0, late(2), "ValueError: bad"}, {1, late(1), oomText}}, 1, OutOfMemory},
		{"the earlier one is not memory", []RankError{{0, late(2), oomText}, {1, late(1), "ValueError: bad"}}, 1, Failed},
		{"a consequence is passed over", []RankError{{0, late(2), oomText}, {1, late(1), ncclText}}, 0, OutOfMemory},
		{"a clock that is an hour behind", []RankError{{0, late(-3600), ncclText}, {1, late(-3599), ncclText}, {5, late(4), oomText}}, 5, OutOfMemory},
		{"without a time last", []RankError{{0, time.Time{}, "ValueError: bad"}, {1, late(1), oomText}}, 1, OutOfMemory},
		{"none has a time", []RankError{{2, time.Time{}, oomText}, {1, time.Time{}, "ValueError: bad"}}, 2, OutOfMemory},
		{"the same time", []RankError{{7, noon, oomText}, {1, noon, "ValueError: bad"}}, 7, OutOfMemory},
		{"an empty message", []RankError{{0, noon, ""}, {1, late(1), oomText}}, 1, OutOfMemory},
		{"consequences alone", []RankError{{0, noon, ncclText}, {1, late(1), ncclText}}, -1, Failed},
		{"the rank is not known", []RankError{{-1, noon, oomText}}, -1, OutOfMemory},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Classify(Exit{Code: 1, Ranks: c.ranks})
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
	got := Classify(Exit{
		Code: 1, Ranks: []RankError{{1, time.Unix(1, 0), oomText}},
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
	if got := Classify(Exit{Code: 1, Tail: []byte(both)}); got.Rank != 1 {
		t.Errorf("rank %d, want 1", got.Rank)
	}
	named := both + "Root Cause (first observed failure):\n[0]:\n  rank      : 2 (local_rank: 2)\n  exitcode  : 1 (pid: 9)\n"
	if got := Classify(Exit{Code: 1, Tail: []byte(named)}); got.Rank != 2 {
		t.Errorf("rank %d, want 2, which torchrun names", got.Rank)
	}
}
