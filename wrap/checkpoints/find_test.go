package checkpoints

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"headroom/wrap/command"
	"headroom/wrap/profile"
	"headroom/wrap/rewrite"
	"headroom/wrap/wraptest"
)

// tensors returns a safetensors file whose header states that there are said bytes of
// data. The number of bytes of data that the file really holds is given by the parameter
// there.
func tensors(said, there int) []byte {
	header := `{"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[1],"data_offsets":[0,` + profile.Int.Write(said, "") + `]}}`
	var b bytes.Buffer
	_ = binary.Write(&b, binary.LittleEndian, uint64(len(header))) // a write to memory does not fail
	b.WriteString(header)
	b.Write(make([]byte, there))
	return b.Bytes()
}

const (
	wholeZip = "PK\x03\x04 data PK\x05\x06 and the end of the directory"
	cutZip   = "PK\x03\x04 data"
)

// matched recognises a Transformers command with the given files and further arguments.
func matched(t *testing.T, files fstest.MapFS, args ...string) *rewrite.Match {
	t.Helper()
	c := command.Line{Args: append([]string{"torchrun", "--nproc_per_node=2", "run_clm.py", "--output_dir=out"}, args...), Dir: "/work"}
	m, err := rewrite.Recognise(c, profile.Builtin(), rewrite.Given{Files: files, Profile: "transformers"})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// checkpoint adds a complete Transformers checkpoint to files, and then applies change to
// it. change maps the name of a file to the content to use instead, or to "-" to leave
// the file out.
func checkpoint(files fstest.MapFS, name string, at time.Time, change map[string]string) {
	content := map[string]string{"trainer_state.json": `{"train_batch_size": 8}`, "model.safetensors": string(tensors(4, 4)), "optimizer.pt": wholeZip, "rng_state_0.pth": wholeZip, "rng_state_1.pth": wholeZip}
	for file, text := range change {
		if content[file] = text; text == "-" {
			delete(content, file)
		}
	}
	for file, text := range content {
		files["work/out/"+name+"/"+file] = &fstest.MapFile{Data: []byte(text), ModTime: at}
	}
}

func TestNewestCompleteCheckpoint(t *testing.T) {
	for _, c := range []struct {
		name    string
		change  map[string]string
		at      time.Time
		problem string
	}{
		{"complete", nil, wraptest.Now.Add(-time.Hour), ""},
		{"no weights", map[string]string{"model.safetensors": "-"}, wraptest.Now.Add(-time.Hour), "no model.safetensors or"},
		{"model alone", map[string]string{"optimizer.pt": "-"}, wraptest.Now.Add(-time.Hour), "no optimizer.pt or"},
		{"weights cut short", map[string]string{"model.safetensors": string(tensors(4, 3))}, wraptest.Now.Add(-time.Hour), "model.safetensors is cut short"},
		{"header cut short", map[string]string{"model.safetensors": "\x10"}, wraptest.Now.Add(-time.Hour), "model.safetensors is cut short"},
		{"optimizer cut short", map[string]string{"optimizer.pt": cutZip}, wraptest.Now.Add(-time.Hour), "optimizer.pt is cut short"},
		{"state cut short", map[string]string{"trainer_state.json": `{"a": `}, wraptest.Now.Add(-time.Hour), "trainer_state.json is cut short"},
		{"one rank cut short", map[string]string{"rng_state_1.pth": ""}, wraptest.Now.Add(-time.Hour), "rng_state_1.pth is empty"},
		{"just written", nil, wraptest.Now.Add(-time.Second), "only just written, perhaps not complete yet"},
	} {
		files := fstest.MapFS{}
		checkpoint(files, "checkpoint-900", wraptest.Start.Add(time.Hour), nil)
		checkpoint(files, "checkpoint-1000", c.at, c.change)
		found, err := Find(matched(t, files), wraptest.Now, Past{Begun: wraptest.Start})
		if err != nil || len(found.All) != 2 || found.Newest == nil {
			t.Fatalf("%s: %+v, %v", c.name, found, err)
		}
		want := "out/checkpoint-900"
		if c.problem == "" {
			want = "out/checkpoint-1000"
		}
		if found.Newest.Path != want || !strings.Contains(found.All[0].Problem, c.problem) {
			t.Errorf("%s: %s, and of the newer one %q, want %s and %q", c.name, found.Newest.Path, found.All[0].Problem, want, c.problem)
		}
		if len(found.Aside()) != 0 {
			t.Errorf("%s: a path is passed, so nothing has to be set aside: %v", c.name, found.Aside())
		}
	}
}

func TestCheckpointsOfAnotherRunAreNotTaken(t *testing.T) {
	files := fstest.MapFS{}
	checkpoint(files, "checkpoint-5000", wraptest.Start.Add(-time.Hour), nil)
	found, err := Find(matched(t, files), wraptest.Now, Past{Begun: wraptest.Start})
	if err != nil || found.Newest != nil || len(found.All) != 0 {
		t.Errorf("%+v, %v", found, err)
	}
}

// TestCheckpointsNeedTheirFolder checks that looking for checkpoints fails if their
// folder is not known.
func TestCheckpointsNeedTheirFolder(t *testing.T) {
	p, err := profile.Parse("p", []byte(pointing))
	if err != nil {
		t.Fatal(err)
	}
	m, err := rewrite.Recognise(command.Line{Args: []string{"pretrain.py", "--micro-batch-size", "4"}, Dir: "/"}, []profile.Profile{p}, rewrite.Given{Profile: "pointing"})
	if err != nil {
		t.Fatal(err)
	}
	var missing *rewrite.KnobError
	if _, err := Find(m, wraptest.Now, Past{Begun: wraptest.Start}); !errors.As(err, &missing) || missing.Knob != "save" {
		t.Errorf("%v", err)
	}
}

const pointing = `name: pointing
match: {argv: pretrain\.py}
knobs:
  micro: {flags: [--micro-batch-size]}
  global: {flags: [--global-batch-size]}
  save: {flags: [--save]}
law: {write: [micro], derive: accumulation, pin: [global], require: ["global % (micro*world) == 0"]}
checkpoints: {root: "{save}", glob: "iter_*", pointer: latest.txt, pointed: "iter_{}", cadence: none}
resume: {mode: auto}
unit: sample
`

// TestPointerFileAndAside checks that a checkpoint newer than the one named by the
// pointer file counts as unfinished, and that it is set aside so that the framework does
// not choose it.
func TestPointerFileAndAside(t *testing.T) {
	p, err := profile.Parse("p", []byte(pointing))
	if err != nil {
		t.Fatal(err)
	}
	for _, pointer := range []string{"0000200\n", "200"} {
		pointsAt(t, p, pointer)
	}
}

func pointsAt(t *testing.T, p profile.Profile, pointer string) {
	t.Helper()
	files := fstest.MapFS{"work/ck/latest.txt": {Data: []byte(pointer), ModTime: wraptest.Start.Add(time.Hour)}}
	for _, name := range []string{"iter_0000100", "iter_0000200", "iter_0000300"} {
		files["work/ck/"+name+"/w.pt"] = &fstest.MapFile{Data: []byte(wholeZip), ModTime: wraptest.Start.Add(time.Hour)}
	}
	m, err := rewrite.Recognise(command.Line{Args: []string{"torchrun", "--nproc-per-node=2", "pretrain.py", "--micro-batch-size", "4", "--save", "ck"}, Dir: "/work"}, []profile.Profile{p}, rewrite.Given{Files: files, Profile: "pointing"})
	if err != nil {
		t.Fatal(err)
	}
	found, err := Find(m, wraptest.Now, Past{Begun: wraptest.Start})
	if err != nil || found.Newest == nil || found.Newest.Path != "ck/iter_0000200" {
		t.Fatalf("%+v, %v", found, err)
	}
	if want := []Rename{{"ck/iter_0000300", "ck/.headroom-incomplete-iter_0000300"}}; !slices.Equal(found.Aside(), want) {
		t.Errorf("aside %v, want %v", found.Aside(), want)
	}
	if w := rewrite.Warnings(m); len(w) != 1 || !strings.Contains(w[0].Text, "saves no checkpoint unless it is told to") {
		t.Errorf("warnings %+v", w)
	}
	asked, err := rewrite.Asks(m)
	if err != nil {
		t.Fatal(err)
	}
	out, err := rewrite.To(m, asked.Plan.WithMicro(2), rewrite.Resume{From: found.Newest.Path})
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(out.Command.Args[3:], " "); got != "--micro-batch-size 2 --save ck --global-batch-size 8" {
		t.Errorf("the effective batch has to be pinned: %s", got)
	}
}

// TestWriteAndSetAside checks that a clone consists of links and the changed file, that
// the user's own checkpoint stays unchanged, and that setting aside overwrites nothing.
func TestWriteAndSetAside(t *testing.T) {
	dir := t.TempDir()
	files := fstest.MapFS{}
	checkpoint(files, "checkpoint-9", wraptest.Start.Add(time.Hour), nil)
	for name, f := range files {
		to := filepath.Join(dir, strings.TrimPrefix(name, "work/"))
		if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, f.Data, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	m := matched(t, files)
	asked, err := rewrite.Asks(m)
	if err != nil {
		t.Fatal(err)
	}
	out, err := rewrite.To(m, asked.Plan.WithMicro(2), rewrite.Resume{From: "out/checkpoint-9"})
	if err != nil || out.Clone == nil {
		t.Fatal(out, err)
	}
	out.Command.Dir = dir
	for range 2 { // the second call replaces what the first one wrote
		if err := out.Write(); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{"checkpoint-9": `{"train_batch_size": 8}`, ".headroom-checkpoint-9": `{"train_batch_size": 2}`} {
		content, err := os.ReadFile(filepath.Join(dir, "out", name, "trainer_state.json"))
		if err != nil || string(content) != want {
			t.Errorf("%s: %s, %v", name, content, err)
		}
		if content, err = os.ReadFile(filepath.Join(dir, "out", name, "optimizer.pt")); err != nil || string(content) != wholeZip {
			t.Errorf("%s: %s, %v", name, content, err)
		}
	}
	renames := []Rename{{"out/checkpoint-9", "out/.headroom-incomplete-checkpoint-9"}}
	if err := SetAside(command.Line{Dir: dir}, renames); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"out/ckpt.pt", "out/.headroom-incomplete-ckpt.pt"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := SetAside(command.Line{Dir: dir}, []Rename{{"out/ckpt.pt", "out/.headroom-incomplete-ckpt.pt"}}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("set aside over another: %v", err)
	}
}

// TestCopiesKeepTheirReaders checks that a copy of a file, which may hold secrets, can be read by
// those who can read the original, and by nobody else.
func TestCopiesKeepTheirReaders(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"private.yaml": 0o600, "group.yaml": 0o640, "public.yaml": 0o644} {
		from := filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(from, []byte("api_key: abc\n"), 0o600), os.Chmod(from, mode)); err != nil {
			t.Fatal(err)
		}
		r := rewrite.Result{Command: command.Line{Dir: dir}, Copies: []rewrite.Copy{{Path: "." + name, From: name, Content: []byte("api_key: abc\n")}}}
		if err := r.Write(); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(filepath.Join(dir, "."+name)); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
}
