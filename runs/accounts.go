package runs

import (
	"time"

	"headroom/memory"
)

// Account is what a memory was held for, as an entry of [KindMemory] says it.
type Account struct {
	Time    time.Time `json:"time"`
	Attempt int       `json:"attempt"`
	memory.Breakdown
}

// Accounts returns the accounts in a journal, oldest first.
func Accounts(entries []Entry) (all []Account) {
	for _, e := range entries {
		if e.Breakdown != nil {
			all = append(all, Account{e.Time, e.Attempt, *e.Breakdown})
		}
	}
	return all
}

// NewestAccounts returns the newest account of each memory since the given time. If since is zero, it
// returns only those that the newest account belongs to: of one process, on one occasion.
func NewestAccounts(entries []Entry, since time.Time) (newest []Account) {
	for _, a := range Accounts(entries) {
		if a.Time.Before(since) {
			continue
		}
		kept := newest[:0]
		for _, other := range newest {
			same := other.PID == a.PID && other.Step == a.Step && other.When == a.When
			if (same || !since.IsZero()) && (other.PID != a.PID || other.Device != a.Device) {
				kept = append(kept, other)
			}
		}
		newest = append(kept, a)
	}
	return newest
}
