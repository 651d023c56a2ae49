package runs

import (
	"path/filepath"
	"testing"
	"time"

	"headroom/memory"
)

// TestFindFound checks that the newest of what was found for a key counts, if about as much memory was free then.
func TestFindFound(t *testing.T) {
	root := t.TempDir()
	var dirs []string
	for name, found := range map[string]*Found{
		"old":     {Key: "a", Micro: 8, Free: 100, Time: time.Unix(1, 0)},
		"newest":  {Key: "a", Micro: 16, Free: 103, Time: time.Unix(3, 0)},
		"newer":   {Key: "a", Micro: 12, Free: 97, Time: time.Unix(2, 0)},
		"crowded": {Key: "a", Micro: 2, Free: 50, Time: time.Unix(4, 0)},
		"other":   {Key: "b", Micro: 4, Free: 100, Time: time.Unix(5, 0)},
		"host":    {Key: "c", Micro: 32, Time: time.Unix(1, 0)},
		"none":    nil,
	} {
		dir := filepath.Join(root, name)
		f, err := Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.SetLearned(Learned{Found: found}); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		dirs = append(dirs, dir)
	}
	dirs = append(dirs, filepath.Join(root, "gone"))
	for _, c := range []struct {
		key   string
		free  memory.Bytes
		micro int
		dir   string
	}{{"a", 100, 16, "newest"}, {"a", 51, 2, "crowded"}, {"a", 70, 0, ""}, {"b", 100, 4, "other"}, {"c", 0, 32, "host"}, {"c", 10, 0, ""}, {"d", 100, 0, ""}} {
		found, dir := FindFound(dirs, c.key, c.free)
		if found == nil {
			found = &Found{}
		}
		if found.Micro != c.micro || c.dir != "" && filepath.Base(dir) != c.dir {
			t.Errorf("%s with %v free: %d rows of %s, want %d of %s", c.key, c.free, found.Micro, dir, c.micro, c.dir)
		}
	}
}

// TestFoundSays checks what is said of what was found.
func TestFoundSays(t *testing.T) {
	for want, f := range map[string]Found{
		"batches of 64 rows are run in pieces of at most 32, as 48 is the largest number that fits": {Rows: 64, Largest: 48, Micro: 32},
		"a batch of 64 rows fits as a whole": {Rows: 64, Largest: 100, Why: "rows are compared"},
		"a batch of 64 rows does not fit, 48 do, and it cannot be run in pieces: rows are compared": {Rows: 64, Largest: 48, Why: "rows are compared"},
	} {
		if said := f.String(); said != want {
			t.Errorf("%q, want %q", said, want)
		}
	}
}
