package wrap

import (
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/rogpeppe/go-internal/txtar"

	"headroom/recovery"
	"headroom/wrap/checkpoints"
	"headroom/wrap/command"
	"headroom/wrap/profile"
	"headroom/wrap/rewrite"
	"headroom/wrap/wraptest"
)

// TestCommands checks how the commands in testdata/commands are rewritten. Each file
// there has a command in a framework's real form, the files that it names, and lines that
// say what to do:
//
//	command: …         the command, as it is typed
//	micro: 4 2 1       micro-batches to rewrite it for; each must keep the effective batch, or say why it cannot
//	world: 2           number of ranks that the user gives
//	profile: trl       profile that the user gives
//	knob: micro=--bs   knob that the user gives; may be repeated
//	resume: trl=1.16.0 resume from the newest checkpoint, with this version of a package; may be repeated
//
// The last file, want, is the whole outcome. go test -update writes it.
func TestCommands(t *testing.T) {
	for name, archive := range commandFiles(t) {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) {
			got := outcome(t, archive)
			if n := len(archive.Files); n == 0 || archive.Files[n-1].Name != "want" {
				archive.Files = append(archive.Files, txtar.File{Name: "want"})
			}
			last := &archive.Files[len(archive.Files)-1]
			if *update {
				last.Data = []byte(got)
				if err := os.WriteFile(name, txtar.Format(archive), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if got != string(last.Data) {
				t.Errorf("got\n%s\nwant\n%s", got, last.Data)
			}
		})
	}
}

// commandFiles yields the files of testdata/commands, by their names.
func commandFiles(t *testing.T) iter.Seq2[string, *txtar.Archive] {
	t.Helper()
	names, err := filepath.Glob("testdata/commands/*.txtar")
	if err != nil || len(names) == 0 {
		t.Fatal("no commands", err)
	}
	return func(yield func(string, *txtar.Archive) bool) {
		for _, name := range names {
			archive, err := txtar.ParseFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if !yield(name, archive) {
				return
			}
		}
	}
}

// scenario is the content of one file in testdata/commands.
type scenario struct {
	command  command.Line
	given    rewrite.Given
	micros   []int
	resume   bool
	versions map[string]string
	files    fstest.MapFS
}

func readScenario(t *testing.T, archive *txtar.Archive) scenario {
	t.Helper()
	s := scenario{files: fstest.MapFS{}, versions: map[string]string{}}
	for line := range strings.Lines(string(archive.Comment)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch key {
		case "command":
			s.command = wraptest.Typed(value)
		case "micro":
			for _, field := range strings.Fields(value) {
				n, err := strconv.Atoi(field)
				if err != nil {
					t.Fatal(err)
				}
				s.micros = append(s.micros, n)
			}
		case "world":
			s.given.World = command.Number(value)
		case "profile":
			s.given.Profile = value
		case "knob":
			s.given.Knobs = append(s.given.Knobs, value)
		case "resume":
			s.resume = true
			name, version, _ := strings.Cut(value, "=")
			s.versions[name] = version
		case "":
		default:
			if !strings.HasPrefix(line, "#") {
				t.Fatalf("unknown line %q", line)
			}
		}
	}
	for i, f := range archive.Files {
		if f.Name != "want" {
			s.files["work/"+f.Name] = &fstest.MapFile{Data: f.Data, ModTime: wraptest.Start.Add(time.Duration(i) * time.Minute)}
		}
	}
	s.given.Files = s.files
	return s
}

func outcome(t *testing.T, archive *txtar.Archive) string {
	t.Helper()
	s := readScenario(t, archive)
	var b strings.Builder
	m, err := rewrite.Recognise(s.command, profile.Builtin(), s.given)
	if err != nil {
		return err.Error() + "\n"
	}
	fmt.Fprintf(&b, "profile %s", m.Profile.Name)
	for _, l := range m.Layers {
		fmt.Fprintf(&b, " + %s", l.Name)
	}
	asked, err := rewrite.Asks(m)
	if err != nil {
		return b.String() + "\n" + err.Error() + "\n"
	}
	fmt.Fprintf(&b, "\nplan %v\n", asked.Plan)
	for _, unknown := range asked.Unknown {
		fmt.Fprintf(&b, "unknown %s\n", unknown)
	}
	var r rewrite.Resume
	if s.resume {
		r = newest(&b, m, s)
	}
	for _, n := range s.micros {
		rewriteTo(t, &b, m, s, asked.Plan.WithMicro(n), r)
	}
	return b.String()
}

// newest returns the newest complete checkpoint to resume from, and writes a list of all
// checkpoints to b.
func newest(b *strings.Builder, m *rewrite.Match, s scenario) rewrite.Resume {
	found, err := checkpoints.Find(m, wraptest.Now, checkpoints.Past{Begun: wraptest.Start})
	if err != nil {
		fmt.Fprintln(b, err)
	}
	for _, c := range found.All {
		fmt.Fprintf(b, "checkpoint %s", c.Path)
		if c.Problem != "" {
			fmt.Fprintf(b, ": %s", c.Problem)
		}
		fmt.Fprintln(b)
	}
	r := rewrite.Resume{Versions: s.versions}
	if found.Newest != nil {
		r.From, r.Problem = found.Newest.Path, found.Newest.Problem
	}
	return r
}

// rewriteTo rewrites a command for plan p and writes the outcome to b. It also checks
// what must hold for every command: when the rewritten command is recognised again, it
// asks for plan p.
func rewriteTo(t *testing.T, b *strings.Builder, m *rewrite.Match, s scenario, p recovery.Plan, r rewrite.Resume) {
	t.Helper()
	fmt.Fprintf(b, "\n# micro-batch %d\n", p.Micro)
	out, err := rewrite.To(m, p, r)
	if err != nil {
		fmt.Fprintln(b, err)
		return
	}
	b.WriteString(out.Diff(s.command))
	for _, what := range out.Prove {
		fmt.Fprintf(b, "to prove: %s\n", what)
	}
	again, err := rewrite.Recognise(out.Command, profile.Builtin(), rewrite.Given{Files: overlaid(s.files, out), Profile: s.given.Profile, Knobs: s.given.Knobs, World: s.given.World})
	if err != nil {
		t.Fatalf("micro-batch %d: the rewritten command: %v", p.Micro, err)
	}
	got, err := rewrite.Asks(again)
	if err != nil {
		t.Fatalf("micro-batch %d: the rewritten command: %v", p.Micro, err)
	}
	want := p.WithMicro(p.Largest())
	if got.Plan != want {
		t.Errorf("micro-batch %d: read back %+v, want %+v", p.Micro, got.Plan, want)
	}
}

// overlaid returns files together with the copies that a rewritten command uses.
func overlaid(files fstest.MapFS, out rewrite.Result) fs.FS {
	with := fstest.MapFS{}
	for name, f := range files {
		with[name] = f
	}
	for _, c := range out.Copies {
		with[out.Command.Abs(c.Path)] = &fstest.MapFile{Data: c.Content}
	}
	return with
}
