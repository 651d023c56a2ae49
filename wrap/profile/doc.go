// Package profile holds what is known of training frameworks: how their commands are
// recognised, where they set the sizes of a step, what their checkpoints look like, how they
// resume and how they are tried out. It is written in YAML, in the language of
// docs/profiles.md. The built-in profiles are the files in builtin.
//
// Start with [Builtin], [Load] for a user's own profiles, and [Plain] for a script about
// which only the user's knobs are known.
package profile
