// Package configs is the schema of a run: it loads, checks and writes
// configurations, one YAML file each, and holds the presets. Start with [Load];
// package job opens what a configuration names.
//
// Whatever is wrong with a configuration is reported before anything starts,
// all of it at once, each [ProblemError] with its file and line.
//
// A key is declared once, in the table of keys.go. The loader, run.yaml, the
// hints for misspelt keys and docs/config.md ([Markdown]) all read that table;
// to add a key, add a field and a row.
//
// A command of the user's own may be kept in a file, too: [LoadCommand], with a table
// of keys of its own in command.go.
//
// To go on with a run, compare its run.yaml with what is asked for now: [Diff]
// names what may not change, [Config.Inherit] takes over what the run has
// decided.
package configs
