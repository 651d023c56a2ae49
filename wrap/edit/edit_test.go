package edit

import (
	"strings"
	"testing"
)

func TestSetChangesNothingElse(t *testing.T) {
	for _, c := range []struct {
		name        string
		format      Format
		before, key string
		after, err  string
	}{
		{"comment and spaces", YAML, "a: 1\nb:   8   # why\nc: 3\n", "b", "a: 1\nb:   9   # why\nc: 3\n", ""},
		{"quoted", YAML, "b: '8'\n", "b", "b: 9\n", ""},
		{"nested after wide letters", YAML, "ü: {ß: \"é\", b: 8}\n", "ü.b", "ü: {ß: \"é\", b: 9}\n", ""},
		{"byte order mark", YAML, "\ufeffb: 8\n", "b", "\ufeffb: 9\n", ""},
		{"own anchor", YAML, "b: &x 8\n", "b", "b: &x 9\n", ""},
		{"alias", YAML, "a: &x 8\nb: *x\n", "b", "a: &x 8\nb: 9\n", ""},
		{"anchor that others use", YAML, "b: &x 8\na: *x\n", "b", "", "other keys refer to it"},
		{"merged mapping", YAML, "base: &m {b: 8}\nrun:\n  <<: *m\n  c: 1\n", "run.b", "base: &m {b: 8}\nrun:\n  b: 9\n  <<: *m\n  c: 1\n", ""},
		{"mapping by alias", YAML, "base: &m {b: 8}\nrun: *m\n", "run.b", "", "other keys refer to it"},
		{"interpolated elsewhere", YAML, "b: 8\nc: ${b}\n", "b", "", "interpolated from this one"},
		{"empty", YAML, "a: 1\nb:\nc: 2\n", "b", "a: 1\nb: 9\nc: 2\n", ""},
		{"absent", YAML, "# top\na: 1\r\n", "b", "# top\nb: 9\r\na: 1\r\n", ""},
		{"absent below", YAML, "t:\n    a: 1\n", "t.b", "t:\n    b: 9\n    a: 1\n", ""},
		{"absent with its parent", YAML, "a: 1\n", "t.b", "t:\n  b: 9\na: 1\n", ""},
		{"absent in braces", YAML, "t: {a: 1}\n", "t.b", "t: {b: 9, a: 1}\n", ""},
		{"given twice", YAML, "b: 8\nb: 7\n", "b", "", "already defined"},
		{"two documents", YAML, "b: 8\n---\nb: 7\n", "b", "", "more than one document"},
		{"block text", YAML, "b: |\n  8\n", "b", "", "cannot be"},
		{"json", JSON, `{"a": [{"b": 1}], "b" : 8 , "c": "b"}`, "b", `{"a": [{"b": 1}], "b" : 9 , "c": "b"}`, ""},
		{"json below", JSON, "{\n\t\"t\": {\"b\": 8}}", "t.b", "{\n\t\"t\": {\"b\": 9}}", ""},
		{"json absent", JSON, "{\n  \"a\": 1\n}\n", "b", "{\n  \"b\": 9,\n  \"a\": 1\n}\n", ""},
		{"json absent in nothing", JSON, "{}", "t.b", `{"t": {"b": 9}}`, ""},
		{"json twice", JSON, `{"b": 1, "b": 2}`, "b", "", "given twice"},
		{"json of more", JSON, `{"b": 1} {}`, "b", "", "unexpected content after the end"},
		{"toml", TOML, "# x\n[t]\nb = 8 # why\n[[u]]\nb = 1\n", "t.b", "# x\n[t]\nb = 9 # why\n[[u]]\nb = 1\n", ""},
		{"toml dotted", TOML, "t.b = +8\n", "t.b", "t.b = 9\n", ""},
		{"toml inline", TOML, "t = { a = 1, b = 8 }\n", "t.b", "t = { a = 1, b = 9 }\n", ""},
		{"toml absent", TOML, "a = 1\n[t] # here\nc = 2\n", "t.b", "a = 1\n[t] # here\nb = 9\nc = 2\n", ""},
		{"toml twice", TOML, "b = 1\nb = 2\n", "b", "", "b"},
		{"python", Python, "\"\"\"\nb = 1\n\"\"\"\nb = 5 * 8 # why\nf(b = 3,\nb = 2)\n", "b", "\"\"\"\nb = 1\n\"\"\"\nb = 9 # why\nf(b = 3,\nb = 2)\n", ""},
		{"python annotated", Python, "b: int=8\n", "b", "b: int=9\n", ""},
		{"python twice", Python, "b = 1\nb = 2\n", "b", "", "more than once"},
		{"python changed later", Python, "b = 4\nb //= 2\n", "b", "", "more than once"},
		{"python absent", Python, "a = 1", "b", "a = 1\nb = 9\n", ""},
	} {
		edit, err := c.format.Set([]byte(c.before), c.key, "9")
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: %v, want %q", c.name, err, c.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if got := string(Apply([]byte(c.before), []Edit{edit})); got != c.after {
			t.Errorf("%s: %q, want %q", c.name, got, c.after)
		}
	}
}

// FuzzSet checks that no editor panics, whatever is in a file, and that an edit gives the
// key its value and leaves every byte outside the edit alone.
func FuzzSet(f *testing.F) {
	for _, seed := range []string{"a: 1\nb: &x 8 # c\nc: {d: *x}\n", `{"a": {"b": 8}, "b": [1, "é"]}`, "[a]\nb = 8\nt = {b = 1}\n", "b = 5 * 8 # x\n'''\nb = 1\n'''\n",
		"? b\n: 8\n", "- b\n", "b: !!int 8\n", "b: \"\\x38\"\n", "a: {}\n", "{b: 8,}\n", "b: >-\n  8\n", "\ufeff{}", "a.b: 3\n", "\"b\" = 8\n", "b: 8\r\nc: 1\r\n"} {
		for kind := range 4 {
			f.Add([]byte(seed), byte(kind), "b")
			f.Add([]byte(seed), byte(kind), "a.b")
		}
	}
	f.Fuzz(func(t *testing.T, content []byte, kind byte, key string) {
		format := []Format{YAML, JSON, TOML, Python}[kind%4]
		edit, err := format.Set(content, key, "9")
		if err != nil {
			return
		}
		if edit.Start < 0 || edit.End < edit.Start || edit.End > len(content) {
			t.Fatalf("edit %+v of %d bytes", edit, len(content))
		}
		after := Apply(content, []Edit{edit})
		if string(after[:edit.Start]) != string(content[:edit.Start]) || string(after[edit.Start+len(edit.New):]) != string(content[edit.End:]) {
			t.Fatalf("%q became %q", content, after)
		}
		got, ok, err := format.Find(after, key)
		if err != nil || !ok || got.Text != "9" {
			t.Fatalf("%q: %s is %q, %v, %v", after, key, got.Text, ok, err)
		}
	})
}
