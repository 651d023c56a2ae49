package exits

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"headroom/memory"
)

// TestClassify checks that each fixture is classified as its header says.
func TestClassify(t *testing.T) {
	for _, f := range exitFixtures(t) {
		t.Run(f.name, func(t *testing.T) {
			got := Classify(f.exit)
			checkOutcome(t, f, got)
			if t.Failed() {
				t.Logf("%+v", got)
			}
		})
	}
}

func checkOutcome(t *testing.T, f exitFixture, got Outcome) {
	t.Helper()
	if (got.Evidence != nil) != got.Kind.Memory() || len(got.Reasons) == 0 {
		t.Errorf("evidence %v and reasons %q do not go with %q", got.Evidence, got.Reasons, got.Kind)
	}
	failure, seen := memory.OutOfMemoryError{}, map[string]string{
		"kind": string(got.Kind), "confidence": string(got.Confidence),
		"rank": strconv.Itoa(got.Rank), "device": strconv.Itoa(got.Device),
	}
	if got.Evidence != nil {
		failure = got.Evidence.Failure
		seen["phase"] = string(failure.Phase)
	}
	for _, key := range slices.Sorted(maps.Keys(seen)) {
		if want, given := f.want[key]; given && seen[key] != want {
			t.Errorf("%s %q, want %q", key, seen[key], want)
		}
	}
	for key, have := range map[string]memory.Bytes{
		"requested": failure.Requested, "capacity": failure.Stats.Capacity, "free": failure.Stats.Free,
		"allocated": failure.Stats.Allocated, "foreign": failure.Stats.Foreign,
	} {
		if want, given := f.want[key]; given && have/memory.KiB != mustParse(t, want)/memory.KiB {
			t.Errorf("%s %v (%d bytes), want %s", key, have, int64(have), want)
		}
	}
	if all := strings.Join(got.Reasons, "; "); !strings.Contains(all, f.want["reason"]) {
		t.Errorf("reasons %q, want %q", all, f.want["reason"])
	}
	switch want := f.want["hopeless"]; {
	case want == "no" && got.Hopeless != "", want != "no" && !strings.Contains(got.Hopeless, want):
		t.Errorf("hopeless %q, want %q", got.Hopeless, want)
	}
}

// TestLookalikesAreNotMemory checks that a failure that only looks like a lack of memory
// is not classified as a lack of memory.
func TestLookalikesAreNotMemory(t *testing.T) {
	failures, others := 0, 0
	for _, f := range exitFixtures(t) {
		if !strings.HasPrefix(f.name, "not-") {
			failures++
			continue
		}
		others++
		if got := Classify(f.exit); got.OutOfMemory() {
			t.Errorf("%s is taken for lack of memory: %q", f.name, got.Reasons)
		}
	}
	if failures < 60 || others < 40 {
		t.Errorf("%d failures and %d look-alikes: some fixtures are gone", failures, others)
	}
}

const (
	tableFile  = "../../docs/failures.md"
	tableBegin = "<!-- begin of the table that go test ./wrap/exits -update writes -->\n"
	tableEnd   = "<!-- end of the table -->\n"
)

// TestConfusionTable checks that the table in the documentation shows how Classify
// classifies the fixtures.
func TestConfusionTable(t *testing.T) {
	table := confusionTable(exitFixtures(t))
	t.Log("\n" + table)
	page, err := os.ReadFile(tableFile)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := bytes.Cut(page, []byte(tableBegin))
	_, after, ok2 := bytes.Cut(rest, []byte(tableEnd))
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the table", tableFile)
	}
	want := slices.Concat(before, []byte(tableBegin), []byte(table), []byte(tableEnd), after)
	if *update {
		if err := os.WriteFile(tableFile, want, 0o644); err != nil {
			t.Fatal(err)
		}
	} else if !bytes.Equal(page, want) {
		t.Errorf("%s is out of date: go test ./wrap/exits -run TestConfusionTable -update", tableFile)
	}
}

// confusionTable returns a table in Markdown that counts the fixtures. A row counts those
// of one family and one true kind, and a column counts those that Classify reports as one
// kind. Failures that are only possibly about memory have a column of their own, because
// headroom does not act on them.
func confusionTable(all []exitFixture) string {
	columns := []string{string(OutOfMemory), string(OutOfHostMemory), string(OutOfSharedMemory), "memory, possible",
		string(Failed), string(DeviceGone), string(Stopped), string(Done)}
	counts := map[string]map[string]int{}
	for _, f := range all {
		got, want := Classify(f.exit), f.want["kind"]
		if f.want["confidence"] == string(Possible) {
			want = "memory, possible"
		}
		row, column := f.want["family"]+" | "+want, string(got.Kind)
		if got.Kind.Memory() && !got.OutOfMemory() {
			column = "memory, possible"
		}
		if counts[row] == nil {
			counts[row] = map[string]int{}
		}
		counts[row][column]++
	}
	var b strings.Builder
	fmt.Fprintf(&b, "| messages of | end | %s |\n|---|---|%s\n", strings.Join(columns, " | "), strings.Repeat("--:|", len(columns)))
	for _, row := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(&b, "| %s |", row)
		for _, column := range columns {
			n := counts[row][column]
			fmt.Fprintf(&b, " %s |", map[bool]string{true: strconv.Itoa(n), false: "·"}[n > 0])
		}
		b.WriteString("\n")
	}
	return b.String()
}

// TestDoneIsToldWithoutReading checks that, for a command that exited with status 0,
// Classify may skip output that cannot mention memory: skipping it changes no outcome.
func TestDoneIsToldWithoutReading(t *testing.T) {
	read := 0
	for _, f := range exitFixtures(t) {
		exit := f.exit
		exit.Code, exit.Signal, exit.Stopped = 0, 0, false
		got, want := Classify(exit), classifier{exit: exit, found: scan(exit.Tail)}.done()
		if got.Error != want.Error || got.Hint != want.Hint || !slices.Equal(got.Reasons, want.Reasons) {
			t.Errorf("%s: %v, want %v", f.name, got, want)
		}
		if want.Error != "" {
			read++
		}
	}
	if read == 0 {
		t.Error("no fixture mentions memory")
	}
	if lines := bytes.Repeat([]byte("step 12 loss 2.34 RuntimeError: a disk\n"), 9); mayTellOfMemory(lines) {
		t.Errorf("%q is read", lines[:40])
	}
}
