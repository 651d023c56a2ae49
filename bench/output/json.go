// Package output writes the results of the benchmarks.
package output

import (
	"encoding/json"
	"os"
)

// JSON writes v, indented, to the file at path, or to standard output if path is
// empty.
func JSON(path string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	text = append(text, '\n')
	if path == "" {
		_, err = os.Stdout.Write(text)
		return err
	}
	return os.WriteFile(path, text, 0o644)
}
