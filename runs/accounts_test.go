package runs

import (
	"strings"
	"testing"
	"time"

	"headroom/memory"
)

// accountsOf returns entries with accounts, each as "pid device step when", one second apart.
func accountsOf(texts ...string) (all []Entry) {
	for i, text := range texts {
		f := strings.Fields(text)
		b := memory.Breakdown{Device: f[1], PID: int(f[0][0] - '0'), Step: int(f[2][0] - '0'), When: memory.When(f[3]), Total: 4 * memory.MiB,
			Shares: []memory.Share{{Kind: memory.Weights, Bytes: memory.MiB}, {Kind: memory.Others, Bytes: memory.MiB, PID: 77, Name: "python"}, {Kind: memory.Unused, Bytes: 2 * memory.MiB}}}
		all = append(all, Entry{Kind: KindMemory, Time: time.Date(2030, 1, 2, 3, 4, i, 0, time.UTC), Breakdown: &b})
	}
	return all
}

func TestNewestAccounts(t *testing.T) {
	entries := accountsOf("1 host 2 grows", "1 host 3 grows", "2 cuda:0 3 asked", "2 host 3 asked", "1 cuda:0 4 asked", "1 host 4 asked", "1 host 5 asked")
	for _, c := range []struct {
		n, since int // of the entries, those before n; since which second
		want     string
	}{
		{7, -1, "1 host 5"},
		{6, -1, "1 cuda:0 4, 1 host 4"},
		{4, -1, "2 cuda:0 3, 2 host 3"},
		{2, -1, "1 host 3"},
		{7, 2, "2 cuda:0 3, 2 host 3, 1 cuda:0 4, 1 host 5"},
		{7, 9, ""},
		{0, -1, ""},
	} {
		since := time.Time{}
		if c.since >= 0 {
			since = time.Date(2030, 1, 2, 3, 4, c.since, 0, time.UTC)
		}
		all := NewestAccounts(entries[:c.n], since)
		var got []string
		for _, d := range all {
			got = append(got, strings.Join([]string{string(rune('0' + d.PID)), d.Device, string(rune('0' + d.Step))}, " "))
		}
		if strings.Join(got, ", ") != c.want {
			t.Errorf("of %d since %d: %q, want %q", c.n, c.since, got, c.want)
		}
	}
}
