package wrap

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"headroom/memory"
	"headroom/nvml"
	"headroom/recovery"
	"headroom/wrap/command"
	"headroom/wrap/profile"
	"headroom/wrap/rewrite"
)

// TestTryUntilFlat checks that a trial without a step limit is ended when its memory has
// stayed flat, and not before, and that it leaves no files behind.
func TestTryUntilFlat(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	dir := t.TempDir()
	script := "import os, sys, signal, time\n" +
		"signal.signal(signal.SIGTERM, lambda *_: (open('ended', 'w').close(), os._exit(9)))\n" +
		"open('pid.new', 'w').write(str(os.getpid())); os.rename('pid.new', 'pid')\n" +
		"open('env', 'w').write(os.environ['PYTORCH_ALLOC_CONF'])\n" +
		"while True: time.sleep(0.05)\n"
	if err := os.WriteFile(filepath.Join(dir, "train.py"), []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := rewrite.Recognise(command.Line{Args: []string{"python3", "train.py", "--bs", "4", "--acc", "1"}, Env: os.Environ(), Dir: dir}, profile.Builtin(),
		rewrite.Given{Files: os.DirFS("/"), Knobs: []string{"micro=--bs", "accumulation=--acc", "output=--out"}})
	if err != nil {
		t.Fatal(err)
	}
	// The process's memory on this GPU grows over three samples, and is gone when the process ends.
	var looks atomic.Int64
	gpus := func() ([]nvml.GPU, error) {
		g := nvml.GPU{Total: 80 * memory.GiB, Utilisation: 90}
		text, err := os.ReadFile(filepath.Join(dir, "pid"))
		pid, _ := strconv.Atoi(string(text))
		_, gone := os.Stat(filepath.Join(dir, "ended"))
		if err == nil && gone != nil {
			held := memory.Bytes(min(3, looks.Add(1))) * memory.GiB
			g.Used, g.Holders = held+memory.GiB, []nvml.Holder{{PID: pid, Bytes: held}}
		}
		return []nvml.GPU{g}, nil
	}
	trials := &Trials{Match: m, FlatFor: 2 * time.Second, Memory: 8 * memory.GiB, Trouble: func(err error) { t.Error(err) }, gpus: gpus}
	got, err := trials.Try(context.Background(), recovery.Plan{Effective: 4, World: 1, Micro: 2, Uniform: true})
	if err != nil {
		t.Fatal(err)
	}
	if !got.Fits || got.Peak != 3*memory.GiB || got.Room != 8*memory.GiB || got.Micro != 2 || got.Accumulation != 2 || !strings.Contains(got.Text, "unchanged for 2s") {
		t.Errorf("%+v", got)
	}
	if n := looks.Load(); n < 7 {
		t.Errorf("ended after %d looks", n)
	}
	if env, err := os.ReadFile(filepath.Join(dir, "env")); err != nil || string(env) != "per_process_memory_fraction:0.1000" {
		t.Errorf("the allocator was told %q, %v", env, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "ended")); err != nil {
		t.Errorf("it was not asked to end: %v", err)
	}
	if entries, err := os.ReadDir(os.Getenv("TMPDIR")); err != nil || len(entries) > 0 {
		t.Errorf("%v is left, %v", entries, err)
	}
}
