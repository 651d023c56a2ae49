package driver_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// toolkits are the folders that are searched for a real cuda.h. They belong to
// CUDA toolkits, or to the CUDA runtime that comes with PyTorch.
var toolkits = []string{
	"/usr/local/cuda*/include", "/opt/cuda/include", "/usr/include",
	"/usr/lib/python3*/dist-packages/nvidia/*/include",
	"/usr/local/lib/python3*/*-packages/nvidia/*/include",
	"/opt/*/.venv/lib/python3*/site-packages/nvidia/*/include",
}

func realHeaders() []string {
	patterns := toolkits
	if home := os.Getenv("CUDA_HOME"); home != "" {
		patterns = append([]string{filepath.Join(home, "include")}, patterns...)
	}
	var found []string
	for _, p := range patterns {
		matches, err := filepath.Glob(filepath.Join(p, "cuda.h"))
		if err != nil {
			continue
		}
		found = append(found, matches...)
	}
	return found
}

var (
	constant  = regexp.MustCompile(`(?m)^\t(CU\w+) = (\w+),$`)
	structure = regexp.MustCompile(`(?s)typedef struct \{(.*?)\} (\w+);`)
	member    = regexp.MustCompile(`(\w+)(?:\[\d+\])?;`)
	prototype = regexp.MustCompile(`(?m)^CUresult (cu\w+)\(.*\);$`)
)

// TestHeaderAgreesWithToolkit compiles assertions about every constant, layout
// and prototype of cuda/include/cuda.h against the real header.
func TestHeaderAgreesWithToolkit(t *testing.T) {
	text, err := os.ReadFile("../include/cuda.h")
	if err != nil {
		t.Fatal(err)
	}
	headers := realHeaders()
	if len(headers) == 0 {
		if os.Getenv("HEADROOM_REQUIRE_GPU") == "1" {
			t.Fatal("no cuda.h of a toolkit found; set CUDA_HOME")
		}
		t.Skip("no cuda.h of a toolkit found; set CUDA_HOME to compare with one")
	}
	source := assertions(string(text))
	for _, header := range headers {
		cmd := exec.Command("cc", "-fsyntax-only", "-I", filepath.Dir(header), "-x", "c", "-")
		cmd.Stdin = strings.NewReader(source)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("against %s: %v\n%s", header, err, out)
			continue
		}
		t.Logf("agrees with %s", header)
	}
}

// assertions returns a C program that compiles only if our header agrees with
// the cuda.h on the include path. The program compares each structure with a
// copy of ours under another name, by size and by the offset of every member.
func assertions(ours string) string {
	var b strings.Builder
	b.WriteString("#include <stddef.h>\n#include <stdlib.h>\n#include <cuda.h>\n")
	// Functions under their exported names take the structure of their version.
	b.WriteString("#if CUDA_VERSION >= 12000\n#define CUDA_KERNEL_NODE_PARAMS CUDA_KERNEL_NODE_PARAMS_v1\n#endif\n")
	for _, m := range constant.FindAllStringSubmatch(ours, -1) {
		if strings.HasSuffix(m[1], "_MASK") {
			continue // the union of all flags: it grows with every version
		}
		fmt.Fprintf(&b, "_Static_assert((long long)%s == %s, \"%s\");\n", m[1], m[2], m[1])
	}
	for _, m := range structure.FindAllStringSubmatch(ours, -1) {
		fmt.Fprintf(&b, "typedef struct {%s} our_%s;\n_Static_assert(sizeof(our_%s) == sizeof(%s), \"%s\");\n", m[1], m[2], m[2], m[2], m[2])
		for _, field := range member.FindAllStringSubmatch(m[1], -1) {
			fmt.Fprintf(&b, "_Static_assert(offsetof(our_%s, %s) == offsetof(%s, %s), \"%s.%s\");\n", m[2], field[1], m[2], field[1], m[2], field[1])
		}
	}
	for _, p := range prototype.FindAllStringSubmatch(ours, -1) {
		// In a newer header the plain name may be a macro for a newer version.
		fmt.Fprintf(&b, "#undef %s\n%s\n", p[1], p[0])
	}
	return b.String()
}
