//go:build cuda

package nvml

import (
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// TestNothingIsLeftOpen checks that symbols.h lists every NVML function that go-nvml
// refers to. A function missing from the list would stay an undefined symbol of the
// executable, left for the dynamic linker to resolve.
func TestNothingIsLeftOpen(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the program is no ELF file")
	}
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close() //nolint:errcheck // it was only read
	open, err := program.ImportedSymbols()
	if err != nil || len(open) == 0 {
		t.Fatalf("%d symbols, %v: not even dlopen", len(open), err)
	}
	for _, s := range open {
		if strings.HasPrefix(s.Name, "nvml") {
			t.Errorf("%s is not in symbols.h", s.Name)
		}
	}
}

// childKey is an environment variable that makes this program the child of a test.
// Its value says what the child does; the child then prints the outcome.
const childKey = "HEADROOM_TEST_NVML"

func TestMain(m *testing.M) {
	switch os.Getenv(childKey) {
	case "":
		os.Exit(m.Run())
	case "before":
		_, counted := nvml.DeviceGetCount()
		init := nvml.Init()
		fmt.Println(int(counted), int(init), init.Error())
	case "versions":
		v, err := DriverVersions()
		all, gone := GPUs()
		fmt.Printf("%+v %v %v %v", v, err, all, gone)
	}
}

// child runs this program again, with every symbol bound when it starts, and returns
// what it prints. does is the value of childKey, and env holds further environment
// variables.
func child(t *testing.T, does string, env ...string) string {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), "LD_BIND_NOW=1", childKey+"="+does), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return strings.TrimSpace(string(out))
}

// TestStartsBound checks that the program starts even if the dynamic linker binds
// every symbol at the start, as under LD_BIND_NOW or in a hardened build.
func TestStartsBound(t *testing.T) {
	if got := child(t, "versions"); got == "" {
		t.Error("it said nothing")
	}
}

// stand is the source code of an NVML library that has hardly any functions. Its function
// that counts the GPUs fails with an unknown error, and it has no function that returns
// the text of an error.
const stand = `
int nvmlInit_v2(void) { return 0; }
int nvmlSystemGetDriverVersion(char *to, unsigned n) { to[0] = '9'; to[1] = 0; return n > 1 ? 0 : 7; }
int nvmlDeviceGetCount_v2(unsigned *n) { return 999; }
`

// standIn returns a folder with a library compiled from stand.
func standIn(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	cc := exec.Command("cc", "-shared", "-fPIC", "-x", "c", "-", "-o", filepath.Join(dir, library))
	cc.Stdin = strings.NewReader(stand)
	if out, err := cc.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return dir
}

// TestOldLibrary checks a library that lacks most functions. Calls must reach this
// library, values that it cannot provide must be reported as unknown, and its errors
// must have a text.
func TestOldLibrary(t *testing.T) {
	got := child(t, "versions", "LD_LIBRARY_PATH="+standIn(t))
	want := "{Version:9 NVML: CUDA:} <nil> [] no NVML: count GPUs: NVML returned: " + noText
	if got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}

const noText = "an error that this NVML has no text for"

// TestBeforeLoad checks that calls return errors, and do not crash, before this
// package has opened the library, even if go-nvml has opened it.
func TestBeforeLoad(t *testing.T) {
	got := child(t, "before", "LD_LIBRARY_PATH="+standIn(t))
	want := fmt.Sprint(int(nvml.ERROR_FUNCTION_NOT_FOUND), " ", int(nvml.ERROR_LIBRARY_NOT_FOUND), " ", noText)
	if got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestNoLibrary(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, library), nil, 0o644); err != nil { // not a library, but found before any real library
		t.Fatal(err)
	}
	if got, want := child(t, "versions", "LD_LIBRARY_PATH="+dir), "libnvidia-ml.so.1 cannot be opened"; !strings.Contains(got, want) {
		t.Errorf("%s, want %s", got, want)
	}
}
