package ui

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"headroom/memory"
	"headroom/runs"
)

// Progress shows how a run is getting on. On a terminal it rewrites a single line;
// elsewhere it writes a new line now and then.
type Progress struct {
	UI       *UI
	Total    int       // steps of the whole run
	Started  time.Time // when this command started
	Failures int       // out-of-memory failures, in this command
	Hidden   bool      // --no-progress

	shown time.Time // when the newest line was written or rewritten
	pace  float64   // seconds per step, smoothed
}

// rewriteEvery is the shortest time between rewrites; eyes cannot follow faster ones.
const rewriteEvery = 100 * time.Millisecond

// Step updates the pace with s, and shows s if it is due.
func (p *Progress) Step(s runs.StepReport) {
	p.pace = smooth(p.pace, s.Seconds)
	if p.UI.Quiet || p.Hidden || !p.due(s) {
		return
	}
	p.shown = p.UI.Now()
	if p.UI.Screen.Live {
		width := p.UI.Screen.Width() - 1
		p.UI.Screen.Show(barred(fitted(p.parts(s), width), s.Step, p.Total, width))
		return
	}
	p.UI.Line(Plain, joined(p.parts(s)))
}

// due reports whether s is to be shown. The last step is always shown. On a terminal, the other
// steps are shown at least [rewriteEvery] apart. Without a terminal, the first step is shown,
// and later steps at growing intervals, from 5 seconds to a minute, so that a night's log stays
// readable.
func (p *Progress) due(s runs.StepReport) bool {
	now := p.UI.Now()
	if s.Step == p.Total {
		return true
	}
	if p.UI.Screen.Live {
		return now.Sub(p.shown) >= rewriteEvery
	}
	gap := min(max(now.Sub(p.Started)/10, 5*time.Second), time.Minute)
	return now.Sub(p.shown) >= gap
}

// part is one item of the progress line, in full and abbreviated for a narrow terminal.
type part struct{ long, short string }

// parts returns the items of the progress line, the most important first.
func (p *Progress) parts(s runs.StepReport) []part {
	same := func(text string) part { return part{text, text} }
	parts := []part{same(fmt.Sprintf("step %d/%d", s.Step, p.Total)), {fmt.Sprintf("loss %.3f", s.Loss), fmt.Sprintf("loss %.2f", s.Loss)}}
	if left := time.Duration(p.pace * float64(p.Total-s.Step) * float64(time.Second)); left >= time.Second {
		parts = append(parts, part{roughly(left) + " left", Briefly(left) + " left"})
	}
	if p.pace > 0 {
		parts = append(parts, same(Rate(float64(s.Samples)/p.pace)))
	}
	micro, peak := splits(s.Splits), Share(s.Memory.Peak, s.Memory.Capacity)
	parts = append(parts, part{"micro " + micro, micro}, part{"peak " + peak, peak})
	if p.Failures > 0 {
		parts = append(parts, part{Plural(p.Failures, "failure") + " survived", fmt.Sprintf("%d OOM", p.Failures)})
	}
	return parts
}

// splits says how a step was cut into micro-batches, in the usual notation: "27×3" is three
// micro-batches of up to 27 samples.
func splits(sizes []int) string {
	if len(sizes) == 0 {
		return "?"
	}
	return fmt.Sprintf("%d×%d", sizes[0], len(sizes))
}

// Share returns a part and the whole, both in the unit of the whole, as in "12.6/15 MiB".
func Share(part, all memory.Bytes) string {
	_, unit, _ := strings.Cut(all.String(), " ")
	one, err := memory.Parse("1" + unit)
	if err != nil {
		return fmt.Sprintf("%v/%v", part, all)
	}
	digits := func(b memory.Bytes) string {
		if v := float64(b) / float64(one); v < 100 {
			return fmt.Sprintf("%.3g", v)
		}
		return fmt.Sprintf("%.0f", float64(b)/float64(one))
	}
	return digits(part) + "/" + digits(all) + " " + unit
}

func joined(parts []part) string {
	texts := make([]string, len(parts))
	for i, p := range parts {
		texts[i] = p.long
	}
	return strings.Join(texts, " · ")
}

// fitted returns a line of at most width columns with the given parts. If they do not all fit
// in full, it uses their short forms, closer together, and leaves out the least important ones.
// It always shows as much of the first part as fits.
func fitted(parts []part, width int) string {
	if line := joined(parts); utf8.RuneCountInString(line) <= width {
		return line
	}
	line := parts[0].short
	if len(line) > width { // step and numbers are ASCII
		return line[:max(0, width)]
	}
	for _, p := range parts[1:] {
		longer := line + "  " + p.short
		if utf8.RuneCountInString(longer) > width {
			break
		}
		line = longer
	}
	return line
}

// barred returns line with a bar in front that shows how much of the run is done. If width
// columns are too few for both, it returns line alone.
func barred(line string, done, total, width int) string {
	const cells = 20
	if total <= 0 || cells+2+utf8.RuneCountInString(line) > width {
		return line
	}
	full := min(cells, cells*done/total)
	return strings.Repeat("█", full) + strings.Repeat("░", cells-full) + "  " + line
}

// smooth returns the moving mean of about the last ten values, given the mean so far and the
// next value.
func smooth(mean, next float64) float64 {
	if mean == 0 {
		return next
	}
	return mean + (next-mean)/10
}

// roughly formats d with as much precision as a person needs.
func roughly(d time.Duration) string {
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%.0f days", d.Hours()/24)
	case d >= time.Hour:
		return fmt.Sprintf("%dh %02dm", int(d.Hours()), int(d.Minutes())%60)
	case d >= time.Minute:
		return fmt.Sprintf("%dm %02ds", int(d.Minutes()), int(d.Seconds())%60)
	}
	return fmt.Sprintf("%.0fs", d.Seconds())
}

// Briefly formats d in a single unit.
func Briefly(d time.Duration) string {
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%.0fd", d.Hours()/24)
	case d >= time.Hour:
		return fmt.Sprintf("%.1fh", d.Hours())
	case d >= time.Minute:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	}
	return fmt.Sprintf("%.0fs", d.Seconds())
}

// Rate formats a number of samples per second to three significant digits, or to a whole number
// if there are 100 or more.
func Rate(samples float64) string {
	if samples >= 100 {
		return fmt.Sprintf("%.0f samples/s", samples)
	}
	return fmt.Sprintf("%.3g samples/s", samples)
}

// Plural returns a number with its noun: "1 step", "2 steps".
func Plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}
