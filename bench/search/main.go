// Command search counts the probes that it takes to find the largest micro-batch.
// It compares search.Largest with doubling and bisection, and with a descent by a
// tenth at a time, on 280 memory curves drawn from a fixed seed. It then counts
// the probes of search.Largest on curves with noise.
//
//	go run ./bench/search                                  # print the table
//	go run ./bench/search -o bench/results/search-probes   # and write .md and .json
//
// Nothing is timed and no device is used: the counts are the same everywhere.
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"headroom/bench/output"
)

// report is the content of the files that are written.
type report struct {
	Date    string  `json:"date"`
	Command string  `json:"command"`
	Seed    uint64  `json:"seed"`
	Curves  int     `json:"curves"`
	Max     int     `json:"max"`
	Rows    []row   `json:"rows"`
	Noise   []share `json:"noise"`
}

func main() {
	out := flag.String("o", "", "write `PATH`.md and PATH.json too")
	flag.Parse()
	if err := run(*out); err != nil {
		fmt.Fprintln(os.Stderr, "bench/search:", err)
		os.Exit(1)
	}
}

func run(out string) error {
	rows, err := compare(draw())
	if err != nil {
		return err
	}
	noise, err := shares()
	if err != nil {
		return err
	}
	command := strings.TrimSpace("go run ./bench/search " + strings.Join(os.Args[1:], " "))
	r := report{
		Date: time.Now().UTC().Format(time.DateOnly), Command: command,
		Seed: seed, Curves: perKind * len(kinds), Max: most, Rows: rows, Noise: noise,
	}
	text := r.markdown()
	if _, err := fmt.Print(text); err != nil {
		return err
	}
	if out == "" {
		return nil
	}
	if err := output.JSON(out+".json", r); err != nil {
		return err
	}
	return os.WriteFile(out+".md", []byte(text), 0o644)
}

func (r report) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, `# Probes to the largest micro-batch

%s, `+"`%s`"+`: %d curves of memory, seed %d, %d of each kind, sizes from 1 to %d.

A probe is one trial of a size. The confirmation that search.Largest adds at its
end, which the others do not have, is not counted. "Short" is by how much the
size found was below the largest that fits. Allocators of the last two kinds
reserve up to 8 %% more than they hand out.

| curve | method | probes, mean | worst | failed, mean | worst | exact | short, mean | worst |
|---|---|---:|---:|---:|---:|---:|---:|---:|
`, r.Date, r.Command, r.Curves, r.Seed, r.Curves/len(kinds), r.Max)
	for _, w := range r.Rows {
		fmt.Fprintf(&b, "| %s | %s | %.1f | %d | %.1f | %d | %.0f %% | %.1f %% | %.1f %% |\n",
			w.Curve, w.Method, w.Probes, w.Worst, w.Failed, w.WorstFailed, 100*w.Exact, 100*w.Short, 100*w.WorstShort)
	}
	fmt.Fprintf(&b, `
## Noise

Probes that search.Largest takes on affine curves that are off the line by up to
3 %%, in the peak reported or in what a size needs, and how often at most five
are enough, of which at most one fails: limits from 1 to %d, %d searches a row.

| share of the capacity that does not grow | five are enough | probes, mean | worst |
|---|---:|---:|---:|
`, widest, perShare)
	for _, n := range r.Noise {
		b.WriteString(n.markdown())
	}
	return b.String()
}
