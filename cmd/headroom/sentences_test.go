package main

import (
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite golden files")

// golden returns the text of a file in testdata. With -update it first writes got to the file.
func golden(t *testing.T, name, got string) string {
	t.Helper()
	path := filepath.Join("testdata", filepath.FromSlash(name))
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	kept, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(kept)
}

// TestSentences keeps every message of the program in one file, to be read as a whole: the diff
// of that file shows how a change affects what users read.
func TestSentences(t *testing.T) {
	var list strings.Builder
	for _, file := range sourceFiles(t) {
		found := goSentences
		if strings.HasSuffix(file, ".py") {
			found = pythonSentences
		}
		if sentences := found(t, filepath.Join("..", "..", file)); len(sentences) > 0 {
			list.WriteString("\n" + file + "\n" + strings.Join(sentences, "\n") + "\n")
		}
	}
	kept := golden(t, "sentences.golden", list.String())
	want, got := strings.Split(kept, "\n"), strings.Split(list.String(), "\n")
	for _, line := range got {
		if !slices.Contains(want, line) {
			t.Errorf("new: %s", line)
		}
	}
	for _, line := range want {
		if !slices.Contains(got, line) {
			t.Errorf("gone: %s", line)
		}
	}
	if t.Failed() || kept != list.String() {
		t.Error("read what the program says now, then: go test -tags cuda ./cmd/headroom -run TestSentences -update")
	}
}

// sourceFiles returns the paths of the program's source files, without tests, benchmarks and files
// with patterns for the messages of other programs.
func sourceFiles(t *testing.T) []string {
	var files []string
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(root, path)
		switch base := entry.Name(); {
		case entry.IsDir() && path != root && (strings.HasPrefix(base, ".") || slices.Contains([]string{"bench", "build", "dist", "examples", "headroom-runs", "out", "testdata", "tests", "devicetest", "shared", "wraptest"}, base)):
			return filepath.SkipDir
		case strings.HasSuffix(base, "_test.go"), slices.Contains([]string{"wrap/exits/amounts.go", "wrap/exits/faults.go", "wrap/exits/roles.go", "cmd/headroom/completion.go", "worker/python/headroom_train/tape/functions.py", "worker/python/headroom_train/reading/flow.py"}, filepath.ToSlash(name)):
		case strings.HasSuffix(base, ".go"), strings.HasSuffix(base, ".py"):
			files = append(files, filepath.ToSlash(name))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// words matches text in which a space separates two words. Names and keys contain no such space.
var words = regexp.MustCompile(`\pL[,;:.)%\w]* [(%"]?\w`)

// goSentences returns the messages in a Go file, in order. It leaves out patterns for the messages
// of other programs.
func goSentences(t *testing.T, path string) []string {
	parsed, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var sentences []string
	ast.Inspect(parsed, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Field: // of a struct: its tag
			return n.Tag == nil
		case *ast.CallExpr:
			if s, ok := n.Fun.(*ast.SelectorExpr); ok && s.Sel.Name == "MustCompile" {
				return false
			}
		case *ast.CompositeLit: // {pattern, what it means}
			if base := filepath.Base(path); (base == "texts.go" || base == "lookalikes.go") && len(n.Elts) > 1 && n.Type == nil {
				for _, e := range n.Elts[1:] {
					ast.Inspect(e, func(n ast.Node) bool { return add(&sentences, n) })
				}
				return false
			}
		}
		return add(&sentences, n)
	})
	return sentences
}

func add(sentences *[]string, n ast.Node) bool {
	if literal, ok := n.(*ast.BasicLit); ok && literal.Kind == token.STRING {
		if text, err := strconv.Unquote(literal.Value); err == nil && words.MatchString(text) {
			*sentences = append(*sentences, strconv.Quote(text))
		}
	}
	return true
}

// pythonSentences returns the messages in a Python file, without its docstrings.
func pythonSentences(t *testing.T, path string) []string {
	const script = `
import ast, json, sys
tree = ast.parse(open(sys.argv[1]).read())
documents = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
parts = {id(v) for n in ast.walk(tree) if isinstance(n, ast.JoinedStr) for v in n.values}
found = []
for n in ast.walk(tree):
    if isinstance(n, ast.JoinedStr):
        found.append((n.lineno, n.col_offset, "".join(v.value if isinstance(v, ast.Constant) else "{}" for v in n.values)))
    elif isinstance(n, ast.Constant) and isinstance(n.value, str) and id(n) not in documents and id(n) not in parts:
        found.append((n.lineno, n.col_offset, n.value))
print("\n".join(json.dumps(text, ensure_ascii=False) for _, _, text in sorted(found)))
`
	out, err := exec.Command("python3", "-c", script, path).Output()
	if err != nil {
		t.Skipf("SKIPPED: there is no Python to read %s with: %v", path, err)
	}
	var sentences []string
	for line := range strings.Lines(string(out)) {
		if line = strings.TrimSuffix(line, "\n"); words.MatchString(line) {
			sentences = append(sentences, line)
		}
	}
	return sentences
}
