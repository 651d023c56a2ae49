// Package configs turns one YAML file into a training run: it loads, checks and
// writes configurations, holds the presets, and opens the data, the device and
// the model that a configuration names.
//
// Start with [Load]:
//
//	c, err := configs.Load("gpt", []string{"batch.micro=8"}) // or a path
//	job, err := c.Open()                                      // reads the data
//	options := job.Options()                                  // for harness.Run
//	options.Folder, err = harness.OpenFolder(c.RunDir())
//	result, err := harness.Run(ctx, options)
//
// Whatever is wrong with a configuration is reported before anything starts,
// all of it at once, each [Problem] with its file and line.
//
// A key is declared once, in the table of keys.go. The loader, run.yaml, the
// hints for misspelt keys and docs/config.md ([Markdown]) all read that table;
// to add a key, add a field and a row.
//
// To go on with a run, compare its run.yaml with what is asked for now: [Diff]
// names what may not change, [Config.Inherit] takes over what the run has
// decided.
package configs
