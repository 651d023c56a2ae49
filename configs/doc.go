// Package configs loads, checks and writes the configurations of runs, one YAML file
// each, and holds the presets. Start with [Load]; package job opens what a
// configuration names.
//
// All mistakes in a configuration are reported at once, before anything starts: one
// [ProblemError] for each mistake, with its file and line.
//
// A key is declared once, in the table of keys.go. The loader, run.yaml, the hints for
// misspelt keys and docs/config.md ([Markdown]) all use that table. To add a key, add a
// field to [Config] and a row to the table.
//
// The user's own training command can be kept in a file, too: see [LoadCommand] and the
// separate table of keys in command.go.
//
// To continue a run, compare its run.yaml with the new configuration. [Diff] returns
// the keys that may not change but did. [Config.Inherit] takes over the values that the
// run has decided.
package configs
