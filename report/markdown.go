package report

import (
	"bytes"
	"fmt"
	"io"
	"strings"

	"headroom/report/chart"
	"headroom/report/words"
)

// Markdown writes the report for places that show Markdown, such as a pull request, a
// chat or a terminal. path returns the path of a picture's file, relative to the
// Markdown. If path is nil, the pictures are left out.
func (r *Report) Markdown(w io.Writer, path func(chart.Picture) string) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# %s: %s\n\n", plain(r.Name), plain(r.Outcome.Title))
	for _, text := range []string{r.Outcome.Reason, strings.TrimPrefix(r.Device+" · "+r.Period(), " · ")} {
		if text != "" {
			fmt.Fprintf(&b, "%s\n\n", plain(text))
		}
	}
	for _, about := range []struct{ what, text string }{{"Ran: ", r.Command}, {"", r.About}, {"Trained: ", r.Trained}} {
		if about.text != "" {
			fmt.Fprintf(&b, "%s%s\n\n", about.what, plain(about.text))
		}
	}
	r.markdownAlarms(&b)
	b.WriteString("| | | |\n|---|---|---|\n")
	for _, c := range r.Cards() {
		fmt.Fprintf(&b, "| %s | **%s** | %s |\n", plain(c.Question), plain(c.Answer), plain(strings.Join(append([]string{c.Note}, c.Lines...), "; ")))
	}
	b.WriteString("\n## What to change next\n\n")
	for _, text := range r.Advice {
		fmt.Fprintf(&b, "- %s\n", plain(text))
	}
	r.markdownLedger(&b)
	r.markdownSizes(&b)
	if path != nil && len(r.draw()) > 0 {
		b.WriteString("\n## Pictures\n")
		for _, p := range r.draw() {
			fmt.Fprintf(&b, "\n![%s: %s](<%s>)\n", plain(p.Title), plain(p.Alt), strings.NewReplacer("<", "%3C", ">", "%3E", "\n", "%0A").Replace(path(p)))
		}
	}
	if _, err := b.WriteTo(w); err != nil {
		return fmt.Errorf("write the report of %s as Markdown: %w", r.Name, err)
	}
	return nil
}

func (r *Report) markdownAlarms(b *bytes.Buffer) {
	a := r.Accounting
	if len(a.Problems) > 0 {
		title := "The effective batch could not be checked in full"
		if a.State == Broken {
			title = "THE EFFECTIVE BATCH WAS NOT KEPT"
		}
		fmt.Fprintf(b, "> **%s**: %s\n", title, plain(a.Sum))
		for _, p := range a.Problems {
			fmt.Fprintf(b, "> - %s\n", plain(p))
		}
		if a.More > 0 {
			fmt.Fprintf(b, "> - and %s more\n", words.Count(a.More))
		}
		b.WriteString("\n")
	}
	for _, p := range r.Problems {
		fmt.Fprintf(b, "> **Not everything could be read**: %s\n\n", plain(p))
	}
}

func (r *Report) markdownLedger(b *bytes.Buffer) {
	b.WriteString("\n## What happened, and what was done\n\n")
	if len(r.Ledger) == 0 {
		b.WriteString("Nothing: no out-of-memory failure was seen, and no plan was changed.\n")
		return
	}
	b.WriteString("| # | When | Step | What happened | What was done, and why | Plan | Time lost |\n|---:|---|---:|---|---|---|---:|\n")
	for _, shown := range r.SomeRows() {
		row := shown.One
		if shown.Skipped > 0 {
			fmt.Fprintf(b, "| | | | rows left out here: %s; journal.jsonl has them all | | | |\n", words.Count(shown.Skipped))
		}
		done := "**" + plain(row.Remedy) + "**"
		if row.Remedy == "" {
			done = ""
		}
		for _, more := range []struct{ name, text string }{{"", row.Reason}, {"tried ", row.Probes}, {"", row.Result}, {"what helps: ", row.Hint}} {
			if more.text != "" {
				done = strings.TrimPrefix(done+". "+more.name+plain(more.text), ". ")
			}
		}
		happened := strings.TrimSuffix(fmt.Sprintf("**%s**. %s", plain(row.What), plain(row.Why)), ". ")
		fmt.Fprintf(b, "| %d | %s %s | %s | %s | %s | %s | %s |\n", row.Number, day(row.Time), stamp(row.Time), row.At(),
			happened, done, plain(row.Cuts()), row.Cost())
	}
}

func (r *Report) markdownSizes(b *bytes.Buffer) {
	if len(r.Sizes) == 0 {
		return
	}
	b.WriteString("\n## How steps were cut\n\n| Largest micro-batch | Micro-batches per step | Steps | First | Last | Peak memory | Samples per second |\n|---:|---:|---:|---:|---:|---:|---:|\n")
	for _, shown := range r.SomeSizes() {
		s := shown.One
		if shown.Skipped > 0 {
			fmt.Fprintf(b, "| sizes left out here: %s | | | | | | |\n", words.Count(shown.Skipped))
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s | %s | %v | %s |\n", words.Count(s.Micro), words.Count(s.Accumulation), words.Count(s.Steps), words.Count(s.From), words.Count(s.To), s.Peak, s.Rate())
	}
}

// plain escapes s so that Markdown shows it unchanged, on one line.
func plain(s string) string {
	var b strings.Builder
	for _, c := range s {
		switch {
		case c == '\n' || c == '\r' || c == '\t':
			b.WriteRune(' ')
		case strings.ContainsRune("\\`*_[]<>|#&~$", c):
			b.WriteRune('\\')
			b.WriteRune(c)
		default:
			b.WriteRune(printable(c))
		}
	}
	return b.String()
}
