package worker

import (
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestPythonIsInOrder checks that a folder of the Python package imports only folders that come
// before it, as ARCHITECTURE.md says.
func TestPythonIsInOrder(t *testing.T) {
	order := []string{"headroom_train", "hooks", "spill", "tape", "sandbox", "ranks", "proof", "replay", "recover", "account", "wire", "find", "notebook", "reading"}
	imports := regexp.MustCompile(`(?m)^\s*from \.\.(\w+)(\.\w+)? import`)
	seen := 0
	err := fs.WalkDir(files, "python/headroom_train", func(name string, entry fs.DirEntry, err error) error {
		at := slices.Index(order, path.Base(path.Dir(name)))
		if err != nil || entry.IsDir() || at < 1 {
			return err
		}
		text, err := files.ReadFile(name)
		for _, found := range imports.FindAllStringSubmatch(string(text), -1) {
			folder := found[1]
			if found[2] == "" {
				folder = "headroom_train" // a file beside the folders
			}
			seen++
			if to := slices.Index(order, folder); to < 0 || to >= at {
				t.Errorf("%s imports %s", strings.TrimPrefix(name, "python/"), folder)
			}
		}
		return err
	})
	if err != nil || seen < 50 {
		t.Errorf("%d imports, %v", seen, err)
	}
}
