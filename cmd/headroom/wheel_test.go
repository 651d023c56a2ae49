package main

import (
	"archive/zip"
	"cmp"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestWheel installs the wheel that HEADROOM_WHEEL names, one of "make wheel", into an environment of Python, which is
// all that is in PATH.
func TestWheel(t *testing.T) {
	wheel := os.Getenv("HEADROOM_WHEEL")
	if wheel == "" {
		t.Skip("SKIPPED: no wheel: make wheel builds one, and HEADROOM_WHEEL has to name it")
	}
	python := pythonWithTorch(t)
	script, err := os.ReadFile(filepath.Join("..", "..", "examples", "train.py"))
	if err != nil {
		t.Fatal(err)
	}
	_, shown, _ := strings.Cut(blockWith(t, "README.md", "$ headroom run -- python examples/train.py --room 256\n"), "$ headroom run")
	t.Chdir(t.TempDir())
	put(t, map[string]string{"examples/train.py": string(script)})
	bin, packages := fresh(t, python, wheel)
	run := func(words ...string) (string, error) {
		c := exec.Command(filepath.Join(bin, words[0]), words[1:]...)
		c.Env = []string{"PATH=" + bin, "HOME=" + t.TempDir()}
		out, err := c.CombinedOutput()
		return string(out), err
	}

	t.Run("programs", func(t *testing.T) { checkPrograms(t, wheel) })

	t.Run("README", func(t *testing.T) {
		out, err := run("headroom", "run", "--", "python", "examples/train.py", "--room", "256")
		if err != nil {
			t.Error(err)
		}
		checkPrinted(t, out, shown)
	})

	t.Run("module", func(t *testing.T) {
		if out, err := run("python", "-m", "headroom_train", "run", "--", "python", "-c", "print('ran')"); err != nil || out != "ran\n" {
			t.Errorf("%v, %q", err, out)
		}
	})

	// Another distribution that has a command of the same name is installed later, and overwrites the file.
	t.Run("taken", func(t *testing.T) {
		put(t, map[string]string{
			filepath.Join(bin, "headroom"):                                "#!/bin/sh\necho other\n",
			filepath.Join(packages, "other-1.dist-info/METADATA"):         "Metadata-Version: 2.1\nName: other\nVersion: 1\n",
			filepath.Join(packages, "other-1.dist-info/entry_points.txt"): "[console_scripts]\nheadroom = other:main\n",
		})
		want, err := run("headroom-train", "version")
		if err != nil || !strings.HasPrefix(want, "headroom ") {
			t.Errorf("%v, %q", err, want)
		}
		const says = "headroom: the command headroom of this environment is that of other; headroom-train is this one\n"
		if out, err := run("python", "-m", "headroom_train", "version"); err != nil || out != says+want {
			t.Errorf("%v, %q", err, out)
		}
	})
}

// fresh makes an environment with the wheel and nothing else, but that it finds the PyTorch of the given interpreter. It
// returns its folders of commands and of packages.
func fresh(t *testing.T, python, wheel string) (bin, packages string) {
	t.Helper()
	must := func(words ...string) string {
		out, err := exec.Command(python, words...).Output()
		if err != nil {
			t.Fatal(words, err)
		}
		return strings.TrimSpace(string(out))
	}
	where, err := filepath.Abs("environment")
	if err != nil {
		t.Fatal(err)
	}
	bin = filepath.Join(where, "bin")
	must("-m", "venv", "--without-pip", where)
	must("-m", "pip", "--python", filepath.Join(bin, "python"), "install", "-q", "--no-index", wheel)
	found, err := filepath.Glob(filepath.Join(where, "lib", "python*", "site-packages"))
	if err != nil || len(found) != 1 {
		t.Fatal(err, found)
	}
	put(t, map[string]string{filepath.Join(found[0], "torch.pth"): must("-c", "import sysconfig; print(sysconfig.get_path('purelib'))") + "\n"})
	return bin, found[0]
}

// checkPrinted checks that a command has printed what a page shows, but for the last digits of losses and the number of
// pieces, which depends on the machine. The page's first line is the rest of the command, "…" stands for what it leaves
// out, and what begins with spaces continues a line. What headroom says and what the script prints come in two streams,
// each in its own order.
func checkPrinted(t *testing.T, out, shown string) {
	t.Helper()
	pieces := regexp.MustCompile(`\d+ pieces`)
	shown = regexp.MustCompile(`\n +`).ReplaceAllString(strings.TrimSpace(shown), " ")
	apart := func(lines []string) []string {
		return slices.SortedStableFunc(slices.Values(lines), func(a, b string) int {
			return cmp.Compare(strings.Count(a, "headroom: "), strings.Count(b, "headroom: "))
		})
	}
	lines, skips := apart(strings.Split(strings.TrimSpace(pieces.ReplaceAllString(out, "pieces")), "\n")), false
	for _, want := range apart(strings.Split(pieces.ReplaceAllString(shown, "pieces"), "\n")[1:]) {
		if want == "…" {
			skips = true
			continue
		}
		at := slices.IndexFunc(lines, func(line string) bool {
			return slices.EqualFunc(strings.Fields(want), strings.Fields(line), func(want, word string) bool {
				before, after, elided := strings.Cut(want, "…")
				return sameLosses(word, want) || elided && strings.HasPrefix(word, before) && strings.HasSuffix(word, after)
			})
		})
		if at < 0 || at > 0 && !skips {
			t.Fatalf("the page shows\n%s\nand it has printed\n%s", want, out)
		}
		lines, skips = lines[at+1:], false
	}
}

// checkPrograms checks the wheel's two commands: that both are the program itself, which no interpreter starts and
// everybody may, and that it needs no newer C library than the wheel's name says.
func checkPrograms(t *testing.T, wheel string) {
	most := glibc(t, regexp.MustCompile(`manylinux_(\d+_\d+)_`), filepath.Base(wheel), "%d_%d")
	files, err := zip.OpenReader(wheel)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = files.Close() }() // nothing was written
	var names []string
	for _, f := range files.File {
		if !strings.Contains(f.Name, ".data/scripts/") {
			continue
		}
		names = append(names, filepath.Base(f.Name))
		if f.Mode() != 0o755 {
			t.Errorf("%s: %v", f.Name, f.Mode())
		}
	}
	if slices.Sort(names); !slices.Equal(names, []string{"headroom", "headroom-train"}) {
		t.Errorf("%q", names)
	}
	for _, name := range names {
		program, err := elf.Open(filepath.Join("environment", "bin", name))
		if err != nil {
			t.Fatal(err)
		}
		symbols, err := program.ImportedSymbols()
		if err != nil || len(symbols) < 10 {
			t.Errorf("%s: %d symbols, %v", name, len(symbols), err)
		}
		for _, s := range symbols {
			if v := glibc(t, regexp.MustCompile(`GLIBC_(\d+\.\d+)`), s.Version, "%d.%d"); v > most {
				t.Errorf("%s needs %s of %s", name, s.Name, s.Version)
			}
		}
		_ = program.Close() // nothing was written
	}
}

// glibc returns the version of glibc in a text, as a number that grows with it; 0 if there is none.
func glibc(t *testing.T, version *regexp.Regexp, text, format string) int {
	t.Helper()
	found := version.FindStringSubmatch(text)
	if found == nil {
		return 0
	}
	var major, minor int
	if _, err := fmt.Sscanf(found[1], format, &major, &minor); err != nil {
		t.Fatal(err)
	}
	return 1000*major + minor
}
