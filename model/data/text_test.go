package data

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"headroom/device"
	"headroom/memory"
)

// folder creates files in a new temporary folder and returns the folder.
func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// show returns one string per sample of a set of text: the tokens, ">", and the
// targets. It writes "_" for a token of padding and for a target that does not
// count.
func show(t *testing.T, set Set) []string {
	t.Helper()
	s := set.Shape().New()
	var lines []string
	for i := range set.Len() {
		if err := set.Sample(i, s); err != nil {
			t.Fatal(err)
		}
		var in, out strings.Builder
		for p := range s.Tokens {
			in.WriteByte(byte(s.Tokens[p]))
			if s.Targets[p] == device.IgnoreIndex {
				out.WriteByte('_')
			} else {
				out.WriteByte(byte(s.Targets[p]))
			}
		}
		lines = append(lines, strings.ReplaceAll(in.String(), "\x00", "_")+">"+out.String())
	}
	return lines
}

func TestTextWindows(t *testing.T) {
	files := map[string]string{
		"b.go": "abcdefghi", "a/z.go": "xy", "a/one.go": "1", "c.txt": "never",
		".git/d.go": "hidden", "e.go": "", "f.go": "12345",
	}
	for _, test := range []struct {
		name  string
		glob  string
		limit memory.Bytes
		want  []string
	}{
		{"glob", "*.go", 0, []string{"xy__>y___", "abcd>bcde", "efgh>fghi", "1234>2345"}},
		{"everything", "", 0, []string{"xy__>y___", "abcd>bcde", "efgh>fghi", "neve>ever", "1234>2345"}},
		{"a file cut short", "*.go", 9, []string{"xy__>y___", "abcd>bcde", "ef__>f___"}},
		{"a file left out", "*.go", 3, []string{"xy__>y___"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			set, err := OpenText(TextOptions{Path: folder(t, files), Glob: test.glob, Limit: test.limit, Context: 4})
			if err != nil {
				t.Fatal(err)
			}
			if got := show(t, set); !slices.Equal(got, test.want) {
				t.Errorf("%q\nwant %q", got, test.want)
			}
		})
	}
}

// TestTextCoversEveryByteOnce checks that every byte of a file except the first
// is a target exactly once, and follows the token whose target it is.
func TestTextCoversEveryByteOnce(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		text := rapid.SliceOfN(rapid.Byte(), 2, 200).Draw(rt, "text")
		context := rapid.IntRange(1, 40).Draw(rt, "context")
		name := filepath.Join(t.TempDir(), "text")
		if err := os.WriteFile(name, text, 0o644); err != nil {
			rt.Fatal(err)
		}
		set, err := OpenText(TextOptions{Path: name, Context: context})
		if err != nil {
			rt.Fatal(err)
		}
		next, s := 0, set.Shape().New()
		for i := range set.Len() {
			if err := set.Sample(i, s); err != nil {
				rt.Fatal(err)
			}
			for p, target := range s.Targets {
				if target == device.IgnoreIndex {
					continue
				}
				if s.Tokens[p] != int32(text[next]) || target != int32(text[next+1]) {
					rt.Fatalf("sample %d at %d: %d → %d, want %d → %d", i, p, s.Tokens[p], target, text[next], text[next+1])
				}
				next++
			}
		}
		if next != len(text)-1 {
			rt.Fatalf("%d targets, want %d", next, len(text)-1)
		}
	})
}

func TestTextFingerprint(t *testing.T) {
	open := func(files map[string]string, context int) string {
		set, err := OpenText(TextOptions{Path: folder(t, files), Context: context})
		if err != nil {
			t.Fatal(err)
		}
		return set.Fingerprint()
	}
	base := open(map[string]string{"a": "abcd", "b": "efgh"}, 4)
	if same := open(map[string]string{"c": "abcd", "d": "efgh"}, 4); same != base {
		t.Error("renamed files in the same order are other data")
	}
	if a, b := open(map[string]string{"a": "abcd", "b": "x", "c": "efgh"}, 4), open(map[string]string{"a": "abcd", "b": "xefgh"}, 4); a == b {
		t.Error("a byte between two files and one in the second have one fingerprint")
	}
	for name, other := range map[string]string{
		"another byte":     open(map[string]string{"a": "abcd", "b": "efgx"}, 4),
		"another order":    open(map[string]string{"b": "abcd", "a": "efgh"}, 4),
		"another boundary": open(map[string]string{"a": "abc", "b": "defgh"}, 4),
		"one file":         open(map[string]string{"a": "abcdefgh"}, 4),
		"another context":  open(map[string]string{"a": "abcd", "b": "efgh"}, 5),
	} {
		if other == base {
			t.Errorf("%s has the same fingerprint", name)
		}
	}
}

func TestTextFollowsALinkedRoot(t *testing.T) {
	dir := folder(t, map[string]string{"real/a.go": "ab"})
	link := filepath.Join(dir, "link")
	if err := os.Symlink(filepath.Join(dir, "real"), link); err != nil {
		t.Skip(err)
	}
	set, err := OpenText(TextOptions{Path: link, Context: 1})
	if err != nil || set.Len() != 1 {
		t.Errorf("%v, %v", set, err)
	}
}

func TestTextErrors(t *testing.T) {
	dir := folder(t, map[string]string{"empty/a": "", "one/a": "x", "some/a": "abc"})
	for _, test := range []struct {
		name string
		o    TextOptions
		want string
	}{
		{"missing", TextOptions{Path: dir + "/none", Context: 4}, "read text: lstat DIR/none: no such file or directory"},
		{"empty", TextOptions{Path: dir + "/empty", Context: 4}, "read text: DIR/empty: too little text (files: 1, bytes: 0); a sample needs a file of at least 2 bytes"},
		{"one byte", TextOptions{Path: dir + "/one", Context: 4}, "read text: DIR/one: too little text (files: 1, bytes: 1); a sample needs a file of at least 2 bytes"},
		{"no match", TextOptions{Path: dir, Glob: "*.go", Context: 4}, `read text: DIR: no file there matches "*.go"`},
		{"pattern", TextOptions{Path: dir, Glob: "[", Context: 4}, `read text: pattern "[": syntax error in pattern`},
		{"device", TextOptions{Path: os.DevNull, Context: 4}, "read text: /dev/null: neither a file nor a folder"},
		{"context", TextOptions{Path: dir}, "read text: 0 tokens per sample: must be at least 1"},
	} {
		_, err := OpenText(test.o)
		if got := strings.ReplaceAll(fmt.Sprint(err), dir, "DIR"); got != test.want {
			t.Errorf("%s: %s\nwant %s", test.name, got, test.want)
		}
	}
	if _, err := OpenText(TextOptions{Path: dir + "/none", Context: 4}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v is not fs.ErrNotExist", err)
	}
}

func TestSampleRefusesWrongRoom(t *testing.T) {
	set, err := OpenText(TextOptions{Path: filepath.Join(folder(t, map[string]string{"a": "abc"}), "a"), Context: 2})
	if err != nil {
		t.Fatal(err)
	}
	for want, err := range map[string]error{
		"sample 1: must be 0 to 0":  set.Sample(1, set.Shape().New()),
		"sample -1: must be 0 to 0": set.Sample(-1, set.Shape().New()),
		"sample 0: room for 3 tokens, 0 features and 3 targets, but 2, 0 and 2 are needed": set.Sample(0, Shape{Tokens: 3}.New()),
	} {
		if fmt.Sprint(err) != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func TestGoSource(t *testing.T) {
	src, err := GoSource()
	if err != nil {
		t.Fatal(err)
	}
	set, err := OpenText(TextOptions{Path: src, Glob: "*.go", Limit: 1 << 20, Context: 64})
	if err != nil {
		t.Fatal(err)
	}
	if set.Bytes() != 1<<20 || set.Files() < 2 || set.Len() < 1<<20/64 {
		t.Errorf("%d files, %d bytes, %d samples", set.Files(), set.Bytes(), set.Len())
	}
}

func TestGoSourceWithoutToolchain(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := GoSource()
	if err == nil || !strings.Contains(err.Error(), "set data.path to a file or folder") {
		t.Errorf("%v does not say what to set", err)
	}
}
