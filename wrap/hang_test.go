package wrap

import (
	"strings"
	"testing"
	"time"
)

// TestHangs checks in which minutes of a command's attempt a hang is reported. In attempt, each
// character is one minute: o is output, g is a kernel, m is memory held on a GPU, s is a
// checkpoint, and - is nothing. In want, ! marks a minute in which a hang is reported. A
// hang is five minutes without a sign of life.
func TestHangs(t *testing.T) {
	for _, c := range []struct{ name, attempt, want string }{
		{"output", "goooooooooo", "..........."},
		{"a kernel now and then", "g---g---g----", "............."},
		{"checkpoints alone", "g---s----s----", ".............."},
		{"nothing", "g---------------", ".....!.........."},
		{"nothing, twice", "g------o------", ".....!......!."},
		{"nothing but memory that it holds", "mmmmmmmm", ".....!.."},
		{"it never used a GPU: it may work on the CPU", "o-------------", ".............."},
	} {
		now := time.Date(2026, 1, 1, 2, 0, 0, 0, time.UTC)
		saved := time.Time{}
		h := &hangWatch{after: 5 * time.Minute, now: func() time.Time { return now }, saved: func() time.Time { return saved }}
		h.alive()
		var got strings.Builder
		for _, sign := range c.attempt {
			switch sign {
			case 'o':
				if _, err := (heard{note: h.alive}).Write([]byte("step")); err != nil {
					t.Fatal(err)
				}
			case 'g':
				h.onGPU(true)
			case 'm':
				h.onGPU(false)
			case 's':
				saved = now
			}
			got.WriteByte(map[bool]byte{false: '.', true: '!'}[h.hangs()])
			now = now.Add(time.Minute)
		}
		if got.String() != c.want {
			t.Errorf("%s: %s, want %s", c.name, got.String(), c.want)
		}
	}
	never := &hangWatch{now: time.Now, saved: func() time.Time { return time.Time{} }}
	never.gpu.Store(true)
	if never.hangs() {
		t.Error("it was not asked to look, but reports a hang")
	}
}
