package configs

import (
	"embed"
	"io/fs"
	"path"
	"strings"
)

//go:embed presets/*.yaml
var presets embed.FS

// Presets returns the names of the configurations that come with the program, in
// lexical order. [Load] takes such a name in place of a path.
func Presets() []string {
	files, err := fs.Glob(presets, "presets/*.yaml")
	if err != nil {
		panic(err) // only for a malformed pattern
	}
	for i, f := range files {
		files[i] = strings.TrimSuffix(path.Base(f), ".yaml")
	}
	return files
}

// presetText returns the file of a preset, and whether there is one.
func presetText(name string) ([]byte, bool) {
	content, err := presets.ReadFile("presets/" + name + ".yaml")
	return content, err == nil
}
