package checkpoints

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"headroom/wrap/command"
	"headroom/wrap/rewrite"
	"headroom/wrap/wraptest"
)

// array returns a .npy file of 4-byte numbers. said is how many its header says there are, and
// there how many it has.
func array(said string, there int) []byte {
	header := "{'descr': '<f4', 'fortran_order': False, 'shape': (" + said + "), }\n"
	return append([]byte("\x93NUMPY\x01\x00"+string(rune(len(header)))+"\x00"+header), make([]byte, 4*there)...)
}

func gzipped(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write(bytes.Repeat([]byte("weights"), 100)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func tape(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Name: "w", Size: 3, Format: tar.FormatUSTAR}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte("abc")); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestWholeFiles checks for each format that a whole file is accepted, and that it is not once
// its end is missing.
func TestWholeFiles(t *testing.T) {
	pickle := []byte("\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00}\x94\x8c\x01s\x94K\x05s.")
	for name, content := range map[string][]byte{
		"object.json":     []byte(`{"s": 5, "text": "a } \" [", "all": [1, 2]}`),
		"python.json":     []byte(`{"loss": NaN, "best": -Infinity}`),
		"lines.json":      []byte("{\"a\": 1}\n{\"b\": 2}"),
		"log.jsonl":       []byte("{\"a\": 1}\n{\"b\": 2}"),
		"w.safetensors":   tensors(8, 8),
		"archive.pt":      []byte(wholeZip),
		"one.npy":         array("7, 2", 14),
		"many.npz":        []byte(wholeZip),
		"packed.json.gz":  gzipped(t),
		"tape.nemo":       tape(t),
		"optimizer.pkl":   pickle,
		"optimizer.pt":    pickle,
		"scheduler.ckpt":  pickle,
		"none.joblib":     pickle,
		"other.something": []byte("of a format without an end"),
	} {
		files := fstest.MapFS{"f/" + name: {Data: content}}
		if problem := broken(files, "f/"+name); problem != "" {
			t.Errorf("%s: %s", name, problem)
		}
		cut := len(content) - 2
		if strings.HasPrefix(string(content), "PK") {
			cut = len(cutZip)
		}
		files["f/"+name].Data = content[:cut]
		if problem := broken(files, "f/"+name); (problem == "") != (name == "other.something") {
			t.Errorf("%s, cut short: %q", name, problem)
		}
	}
	for name, content := range map[string]string{
		"zeros.json": `{"a": 1}` + strings.Repeat("\x00", 100) + `{}`,
		"blank.json": " \n", // written, and nothing reached the disk
	} {
		if broken(fstest.MapFS{name: {Data: []byte(content)}}, name) == "" {
			t.Errorf("%s is accepted", name)
		}
	}
	old := "\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02 and raw data"
	for name, content := range map[string]string{"old.pt": old, "a.bin": "\x80\x07 is no pickle", "scalar.json": "5", "object.npy": "\x93NUMPY\x01\x00\x1c\x00{'descr': '|O', 'shape': ()}"} {
		if problem := broken(fstest.MapFS{name: {Data: []byte(content)}}, name); problem != "" {
			t.Errorf("%s: %s", name, problem)
		}
	}
}

// scriptMatch recognises a script that keeps its checkpoints in files that match the pattern.
func scriptMatch(t *testing.T, files fs.FS, dir, pattern string) *rewrite.Match {
	t.Helper()
	c := command.Line{Args: []string{"python", "t.py", "--bs", "8", "--acc", "1"}, Dir: dir}
	m, err := rewrite.Recognise(c, nil, rewrite.Given{Files: files, World: 1, Knobs: []string{"micro=--bs", "accumulation=--acc", "resume=--resume", "checkpoints=" + pattern}})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestPlainFolders checks when a folder that a script has saved counts as complete.
func TestPlainFolders(t *testing.T) {
	type content map[string]string
	for _, c := range []struct {
		name   string
		newest content // files in out/step-5; out/step-4 has a model and an optimizer
		want   string
	}{
		{"whole", content{"model.json": `{"a": 1}`, "optim.pt": wholeZip}, ""},
		{"cut short", content{"model.json": `{"a`, "optim.pt": wholeZip}, "model.json is cut short"},
		{"cut short, further down", content{"model.json": `{}`, "optim.pt": wholeZip, "rank-0/w.pt": cutZip}, "w.pt is cut short: the end of its archive is missing"},
		{"empty", content{"model.json": `{"a": 1}`, "optim.pt": ""}, "optim.pt is empty"},
		{"one file missing", content{"model.json": `{"a": 1}`}, "has no optim.pt, unlike the others"},
		{"one file more", content{"model.json": `{"a": 1}`, "optim.pt": wholeZip, "x.txt": "x"}, ""},
		{"marked as done", content{"model.json": `{"a": 1}`, "optim.pt": wholeZip, "DONE": "", ".is_checkpoint": "", "_SUCCESS": ""}, ""},
		{"nothing", nil, "it has no files"},
	} {
		files := fstest.MapFS{
			"work/out/step-4/model.json": {Data: []byte(`{"a": 1}`), ModTime: wraptest.Start.Add(time.Hour)},
			"work/out/step-4/optim.pt":   {Data: []byte(wholeZip), ModTime: wraptest.Start.Add(time.Hour)},
			"work/out/step-5":            {Mode: fs.ModeDir | 0o755, ModTime: wraptest.Start.Add(2 * time.Hour)},
		}
		for name, text := range c.newest {
			files["work/out/step-5/"+name] = &fstest.MapFile{Data: []byte(text), ModTime: wraptest.Start.Add(2 * time.Hour)}
		}
		found, err := Find(scriptMatch(t, files, "/work", "out/step-*"), wraptest.Now, Past{Begun: wraptest.Start})
		if err != nil || len(found.All) != 2 || found.Newest == nil {
			t.Fatalf("%s: %+v, %v", c.name, found, err)
		}
		want := "out/step-4"
		if c.want == "" {
			want = "out/step-5"
		}
		if found.All[0].Problem != c.want || found.Newest.Path != want {
			t.Errorf("%s: %q, and %s is chosen", c.name, found.All[0].Problem, found.Newest.Path)
		}
	}
}
