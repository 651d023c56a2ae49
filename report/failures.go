package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"headroom/memory"
	"headroom/recovery"
	"headroom/report/words"
)

// Failures sums up the failures in the ledger.
type Failures struct {
	Total     int
	Causes    []CauseCount // most frequent first
	Lost      float64      // seconds that are known to have been lost
	Other     float64      // the part of Lost that no cause in Causes accounts for
	Share     float64      // Lost as a share of the time in attempts; 0 if not known
	Uncounted int          // failures whose cost is not known
	InPlace   int          // failures survived inside a process of a wrapped command
	Fatal     bool         // the run ended because of memory
	Open      bool         // the journal does not say what was done about the newest failure
	Summary   string       // "memory ran out 3 times, all survived: 2 batch, 1 foreign"
}

// CauseCount is how many times memory ran out for one cause, and how much time that cost.
type CauseCount struct {
	Cause memory.Cause
	N     int
	Lost  float64 // seconds
}

func failures(rows []Row, o Outcome) Failures {
	var f Failures
	causes, lost := map[memory.Cause]int{}, map[memory.Cause]float64{}
	for _, row := range rows {
		f.Lost += row.Lost
		if row.Failed {
			lost[cmp.Or(row.Cause, memory.Unknown)] += row.Lost
		}
		if row.Failed && !row.repeated {
			f.Total++
			if row.InPlace {
				f.InPlace++
			}
			causes[cmp.Or(row.Cause, memory.Unknown)]++
			if row.uncounted() {
				f.Uncounted++
			}
		}
		if row.Failed {
			f.Open = row.Remedy == "" && o.State != Finished
		}
		if row.last == recovery.Stop {
			f.Fatal = o.State == Failed && row.Attempt == rows[len(rows)-1].Attempt
		}
	}
	f.Other = f.Lost
	for cause, n := range causes {
		f.Causes = append(f.Causes, CauseCount{cause, n, lost[cause]})
		f.Other -= lost[cause]
	}
	slices.SortFunc(f.Causes, func(a, b CauseCount) int {
		return cmp.Or(b.N-a.N, strings.Compare(string(a.Cause), string(b.Cause)))
	})
	if active := o.Active.Seconds(); active > 0 {
		f.Share = min(1, f.Lost/active)
	}
	f.Summary = f.sentence()
	return f
}

func (f Failures) sentence() string {
	if f.Total == 0 {
		return "memory never ran out"
	}
	var causes []string
	for _, c := range f.told() {
		causes = append(causes, words.Count(c.N)+" "+c.name())
	}
	return strings.TrimSuffix(fmt.Sprintf("memory ran out %s, %s: %s", words.Plural(f.Total, "time"), f.end(), strings.Join(causes, ", ")), ": ")
}

// told returns the causes that are worth telling: none if no cause is known.
func (f Failures) told() []CauseCount {
	if len(f.Causes) == 1 && f.Causes[0].Cause == memory.Unknown {
		return nil
	}
	return f.Causes
}

// name returns the cause in words for people.
func (c CauseCount) name() string {
	if c.Cause == memory.Unknown {
		return "cause not known"
	}
	return string(c.Cause)
}

func (f Failures) end() string {
	switch {
	case f.Fatal:
		return "the last one ending the run"
	case f.Open:
		return "the last one not handled yet"
	}
	return "all survived"
}
