package wrap

import (
	"strings"
	"testing"
	"time"
)

// TestLeakWatch checks in which minutes of its attempt a leaking command would be restarted.
// Each attempt begins at 02:00. In attempt, each character is a minute: s is a checkpoint, and
// any other letter says in how many minutes memory will run out (a is 1, b is 2 and so
// on); - means that nothing suggests that it will. In want, ! marks the minutes in which
// the command would be restarted.
func TestLeakWatch(t *testing.T) {
	for _, c := range []struct{ name, attempt, want string }{
		{"no leak", "----s----s----", ".............."},
		{"long to go", "zzzzszzzzszzzz", ".............."},
		{"no checkpoint yet: it would begin again", "edcbaaa", "......."},
		{"not before the next", "zzzzskjih", "........."},
		{"before the next, known at the checkpoint", "----s", "....."},
		{"before the next", "zzzzsb", ".....!"},
		{"just when the next is due", "zzzzsc", ".....!"},
		{"a little after the next is due", "zzzzsd", "......"},
		{"seen late, said once", "zzzzs-ba-", "......!.."},
		{"and again after the next one", "zzzzscbaas-baa", ".....!.....!.."},
		{"the next is due as long after the newest as that after the one before", "zzzzszzzzs-d", "............"},
		{"it holds less again", "zzzzscc--cc", ".....!....."},
	} {
		began := time.Date(2026, 1, 1, 2, 0, 0, 0, time.UTC)
		now, saved := began, []time.Time{began.Add(-time.Hour)} // a checkpoint of the attempt before
		l := &leakWatch{began: began}
		var got strings.Builder
		for _, sign := range c.attempt {
			var out time.Time
			switch {
			case sign == 's':
				saved = append([]time.Time{now}, saved...)
			case sign != '-':
				out = now.Add(time.Duration(sign-'a'+1) * time.Minute)
			}
			got.WriteByte(map[bool]byte{false: '.', true: '!'}[l.due(saved, out)])
			now = now.Add(time.Minute)
		}
		if got.String() != c.want {
			t.Errorf("%s: %s, want %s", c.name, got.String(), c.want)
		}
	}
}
