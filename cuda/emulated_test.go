package cuda

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestFlashWithoutGPU runs the bfloat16 attention kernels on the processor, lane by lane,
// and checks the relative errors of their results. The tolerance for log Σ exp is smaller
// than the others, because the other results are rounded to bfloat16.
func TestFlashWithoutGPU(t *testing.T) {
	compiler, err := exec.LookPath("c++")
	if err != nil {
		t.Skip("no C++ compiler: ", err)
	}
	dir := t.TempDir()
	for _, file := range []string{"flash.cu", "emulated/mma.cuh", "emulated/flash.cpp"} {
		text, err := os.ReadFile(filepath.Join("kernels", file))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(file)), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	program := filepath.Join(dir, "flash")
	if out, err := exec.Command(compiler, "-std=c++17", "-O1", "-w", "-o", program, filepath.Join(dir, "flash.cpp")).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, shape := range [][5]int{ // B, T, H, D, offset
		{1, 64, 1, 64, 0}, {2, 100, 2, 64, 0}, {1, 200, 1, 128, 0}, {1, 1, 1, 1, 1}, {2, 65, 2, 17, 1},
		{1, 130, 3, 96, 0}, {1, 33, 1, 65, 3}, {1, 129, 2, 32, 8}, {1, 257, 1, 64, 1},
		{2, 130, 2, 128, 0}, {1, 193, 1, 72, 0}, {1, 70, 2, 101, 0},
	} {
		var arguments []string
		for _, v := range shape {
			arguments = append(arguments, fmt.Sprint(v))
		}
		printed, err := exec.Command(program, arguments...).CombinedOutput()
		var out, lse, dqkv float64
		if _, scanned := fmt.Sscan(string(printed), &out, &lse, &dqkv); err != nil || scanned != nil {
			t.Fatalf("%v: %v\n%s", shape, err, printed)
		}
		if !(out <= 3e-3 && lse <= 1e-6 && dqkv <= 4e-3) {
			t.Errorf("%v: relative errors out %.1e, lse %.1e, dqkv %.1e", shape, out, lse, dqkv)
		}
	}
}
