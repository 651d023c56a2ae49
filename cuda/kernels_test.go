package cuda

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestKernelsAreOfTheirSources fails if a kernel's source was changed without
// running make kernels. The first line of a compiled file holds the checksum of
// its sources.
func TestKernelsAreOfTheirSources(t *testing.T) {
	headers, err := filepath.Glob("kernels/*.cuh")
	if err != nil || len(headers) == 0 {
		t.Fatalf("no headers: %v", err)
	}
	var header []byte
	for _, file := range headers {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		header = append(header, text...)
	}
	files, err := filepath.Glob("kernels/*.cu")
	if err != nil || len(files) == 0 {
		t.Fatalf("no kernels: %v", err)
	}
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		compiled, err := os.ReadFile(strings.TrimSuffix(file, ".cu") + ".ptx")
		if err != nil {
			t.Fatal(err)
		}
		first, _, _ := strings.Cut(string(compiled), "\n")
		want := fmt.Sprintf("// sha256 of the headers and %s: %x", filepath.Base(file), sha256.Sum256(append(header[:len(header):len(header)], source...)))
		if first != want {
			t.Errorf("%s was not compiled from its source as it is; run make kernels", file)
		}
		target := ".target sm_70" // the oldest architecture that is supported
		if filepath.Base(file) == "flash.cu" {
			target = ".target sm_80" // the oldest architecture with bfloat16
		}
		if !strings.Contains(string(compiled), target) {
			t.Errorf("%s is not compiled for %s", file, target)
		}
	}
}
