package configs

import (
	"fmt"
	"strings"
)

// Markdown returns the text of docs/config.md: every key with its default, the values
// that are allowed, and its meaning.
func Markdown() string {
	var b strings.Builder
	b.WriteString(`# Configuration

A run is one YAML file. Start from a preset (` + presetLinks() + `) or from nothing: only
model.kind, data.kind and one of train.steps and train.epochs have to be given.

    headroom run gpt                                    a preset
    headroom run my.yaml                                a file
    headroom run gpt --set batch.micro=8 --set data.path=book.txt
                                                        any key, overridden
    headroom run gpt --set schedule.kind=constant --unset schedule.min
                                                        a key left out of the file
    headroom config show gpt > my.yaml                  a preset, to make it your own

Unknown keys and bad values are refused before anything starts, and reported all
at once, each with file and line. Sizes need a unit: B, KB, MB, GB, TB (powers of 1000)
or KiB, MiB, GiB, TiB (powers of 1024). Paths are relative to where the command
is started. Anchors, aliases and tags are not allowed.

Keys marked ● may not change within a run: the run's folder records the values it
was started with, and a run is not continued with different ones. All other keys
may be changed from one start to the next.

This page is generated from the table in configs/keys.go.
`)
	group := ""
	for i, k := range keys {
		head, _, grouped := strings.Cut(k.Name, ".")
		if i == 0 || grouped && head != group {
			title := head
			if !grouped {
				title = "The run"
			}
			fmt.Fprintf(&b, "\n## %s\n\n| key | default | allowed | meaning |\n|---|---|---|---|\n", title)
			group = head
		}
		fmt.Fprintf(&b, "| `%s`%s | %s | %s | %s |\n", k.Name, k.mark(), k.shownDefault(), k.Allowed(), k.meaning())
	}
	return b.String()
}

func presetLinks() string {
	links := Presets()
	for i, p := range links {
		links[i] = fmt.Sprintf("[%s](../configs/presets/%s.yaml)", p, p)
	}
	return strings.Join(links, ", ")
}

func (k Key) mark() string {
	if k.Fixed {
		return " ●"
	}
	return ""
}

func (k Key) shownDefault() string {
	switch {
	case k.Required:
		return "required"
	case k.Default == "":
		return "—"
	}
	return "`" + k.Default + "`"
}

func (k Key) meaning() string {
	if k.Only.Key == "" {
		return k.Doc
	}
	return fmt.Sprintf("%s (%s: %s)", k.Doc, k.Only.Key, list(k.Only.Values, "or"))
}
