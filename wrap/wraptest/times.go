package wraptest

import "time"

// The commands in tests begin at the time Start. All of them have ended at the time Now.
var (
	Start = time.Date(2026, 3, 1, 22, 0, 0, 0, time.UTC)
	Now   = Start.Add(8 * time.Hour)
)
