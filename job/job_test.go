package job

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"headroom/configs"
	"headroom/cuda"
	"headroom/device"
	"headroom/harness"
	"headroom/memory"
	"headroom/recovery"
)

// tight is a configuration small enough for any test to run.
const tight = `model: {kind: mlp, layers: 1, width: 8}
data: {kind: blobs, samples: 100, features: 4, classes: 2}
batch: {effective: 16, micro: 8, min_micro: 2}
train: {epochs: 1.5, checkpoint_every: 7, keep: 2}
device: {kind: host, capacity: 8MiB, squeeze: [{from: 2, to: 4, take: 1MiB}, {from: 3, to: 5, take: 2MiB}]}
memory: {headroom: 5%, grow_after: 3}
`

// good is a valid configuration whose data file does not exist unless a test creates it.
const good = `model:
  kind: gpt
  width: 64
data:
  kind: text
  path: book.txt
batch:
  effective: 32
train:
  steps: 100
`

// parse loads a configuration from a file that holds content, with the overrides in sets.
func parse(t *testing.T, content string, sets ...string) (*configs.Config, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "my.yaml")
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return configs.Load(path, sets)
}

func openTight(t *testing.T, sets ...string) *Job {
	t.Helper()
	c, err := parse(t, tight, sets...)
	if err != nil {
		t.Fatal(err)
	}
	j, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func TestOpenResolves(t *testing.T) {
	j := openTight(t, "schedule.kind=linear")
	c := j.Config
	// 1.5 · 100 / 16 = 9.375
	if c.Train.Steps != 10 || c.Train.Epochs != 0 || c.Schedule.Steps != 10 || c.Data.Fingerprint != j.Set.Fingerprint() {
		t.Errorf("%+v", c)
	}
}

func TestOpenLeavesTheConfigurationAlone(t *testing.T) {
	c, err := parse(t, tight)
	if err != nil {
		t.Fatal(err)
	}
	before := *c
	if _, err := Open(c); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(before, *c) {
		t.Errorf("%+v\nwas\n%+v", *c, before)
	}
}

func TestOptions(t *testing.T) {
	o := openTight(t).Run()
	if o.Open == nil || o.BeforeStep == nil || o.Observe == nil {
		t.Fatal("no Open, no BeforeStep or no Observe")
	}
	if gone := (&device.GoneError{Device: "a GPU", Err: errors.New("gone")}); !o.Gone(fmt.Errorf("step 1: %w", gone)) || o.Gone(&memory.OutOfMemoryError{}) {
		t.Error("a device that is gone is not told from other errors")
	}
	if o.CheckpointEvery != 7 || o.Keep != 2 {
		t.Errorf("%+v", o)
	}
	policy := recovery.Policy{MinMicro: 2, Headroom: 0.05, Relaunches: 3, Waits: 10, GrowAfter: 3}
	want := harness.SessionOptions{Steps: 10, Plan: recovery.Plan{Effective: 16, World: 1, Micro: 8}, Policy: policy}
	if got := openTight(t).Session(); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nwant\n%+v", got, want)
	}
	if got := openTight(t).Find(); !reflect.DeepEqual(got.Policy, policy) || got.Plan != want.Plan {
		t.Errorf("%+v", got)
	}
	for precision, want := range map[string]string{"fp32": "", "bf16": "bf16"} {
		if got := openTight(t, "device.precision="+precision).Session().Precision; got != want {
			t.Errorf("precision %q of %s, want %q", got, precision, want)
		}
	}
	p := openTight(t, "memory.allow=[recompute]").Session().Policy
	if !p.Recompute || p.Relaunches != 0 || p.Waits != 0 {
		t.Errorf("recompute alone is allowed: %+v", p)
	}
}

// TestMostChannels checks that configurations and the CUDA kernels have the same limit on
// the channels per head.
func TestMostChannels(t *testing.T) {
	if configs.MostChannels != cuda.MostChannels {
		t.Errorf("configs allows heads of %d channels, the kernels take %d", configs.MostChannels, cuda.MostChannels)
	}
}

func TestSqueeze(t *testing.T) {
	o := openTight(t).Run()
	trainer, err := o.Open(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for finished, want := range []memory.Bytes{0, 0, 1 * memory.MiB, 3 * memory.MiB, 2 * memory.MiB, 0} {
		o.BeforeStep(finished)
		if got := trainer.Stats().Foreign; got != want {
			t.Errorf("after %d steps others hold %v, want %v", finished, got, want)
		}
	}
	// In a new attempt the squeezes still hold as much memory.
	o.BeforeStep(3)
	if err := trainer.Close(); err != nil {
		t.Fatal(err)
	}
	if trainer, err = o.Open(context.Background()); err != nil {
		t.Fatal(err)
	}
	if got := trainer.Stats().Foreign; got != 3*memory.MiB {
		t.Errorf("in the next attempt others hold %v, want 3 MiB", got)
	}
	if err := trainer.Close(); err != nil {
		t.Error(err)
	}
}

func TestSqueezeIsTold(t *testing.T) {
	j := openTight(t)
	var told []string
	j.Squeezed = func(s configs.Squeeze, begins bool) { told = append(told, fmt.Sprintf("%v %t", s.Take, begins)) }
	o := j.Run()
	trainer, err := o.Open(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for finished := range 7 {
		o.BeforeStep(finished)
		o.BeforeStep(finished)
	}
	if got, want := strings.Join(told, ", "), "1 MiB true, 2 MiB true, 1 MiB false, 2 MiB false"; got != want {
		t.Errorf("told %s, want %s", got, want)
	}
	if err := trainer.Close(); err != nil {
		t.Error(err)
	}
}

func TestTrainerTooLargeForTheDevice(t *testing.T) {
	o := openTight(t, "device.capacity=1KiB", "device.squeeze=[]").Run()
	_, err := o.Open(context.Background())
	var oom *memory.OutOfMemoryError
	if !errors.As(err, &oom) || oom.Phase != memory.PhaseLoad {
		t.Errorf("%v is no out-of-memory failure while loading", err)
	}
}

// TestPrecision checks that only bf16 selects mixed precision, and that the limit of the
// CUDA kernels on the width of heads does not apply on the host.
func TestPrecision(t *testing.T) {
	for _, c := range []struct {
		kind, precision string
		width           int
		mixed           bool
	}{
		{"auto", "fp32", 2048, false}, {"cuda", "tf32", 2048, false}, {"auto", "tf32", 64, false},
		{"auto", "bf16", 512, true}, {"cuda", "bf16", 512, true}, {"host", "bf16", 516, true},
	} {
		sets := []string{"device.kind=" + c.kind, "device.precision=" + c.precision, fmt.Sprint("model.width=", c.width)}
		got, err := parse(t, good, sets...)
		if err != nil {
			t.Errorf("%v: %v", sets, err)
			continue
		}
		if spec(got).Mixed != c.mixed {
			t.Errorf("%v: mixed %v, want %v", sets, spec(got).Mixed, c.mixed)
		}
	}
}

func TestDevices(t *testing.T) {
	for kind, want := range map[string]string{"host": "", "auto": "", "cuda": "open device cuda: no such device here"} {
		d, err := OpenDevice(&configs.Config{Device: configs.Device{Kind: kind, Capacity: memory.MiB}}, nil)
		if want != "" {
			if !errors.Is(err, ErrNoDevice) || !strings.HasPrefix(err.Error(), want) {
				t.Errorf("%s: %v", kind, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", kind, err)
			continue
		}
		if got := d.Stats().Capacity; got != memory.MiB {
			t.Errorf("%s: capacity %v", kind, got)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestDataErrors(t *testing.T) {
	dir := t.TempDir()
	book := filepath.Join(dir, "book.txt")
	if err := os.WriteFile(book, []byte(strings.Repeat("words ", 100)), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name string
		base string
		sets []string
		want string
	}{
		{"no text", good, []string{"data.path=" + dir + "/none"}, "read text: lstat DIR/none: no such file or directory; set data.path to a file or folder of text"},
		{"little text", good, []string{"data.path=" + book}, "open data: 10 samples, fewer than batch.effective (32); give more data or a smaller effective batch"},
		{"few blobs", tight, []string{"data.samples=15"}, "open data: 15 samples, fewer than batch.effective (16); give more data or a smaller effective batch"},
		{"other data", good, []string{"data.path=" + book, "batch.effective=1", "data.fingerprint=f"}, "open data: data.fingerprint: f: the data at hand has the fingerprint FP; give the run the data it began with, or start another run"},
		{"no images", "model: {kind: mlp}\ndata: {kind: idx, path: " + dir + "}\ntrain: {steps: 1}\n", nil,
			"read images: DIR/train-images-idx3-ubyte, with or without .gz: file does not exist; " + configs.GetIDX + ", or set data.path"},
	} {
		c, err := parse(t, test.base, test.sets...)
		if err != nil {
			t.Fatal(err)
		}
		_, err = Open(c)
		if err == nil {
			t.Errorf("%s: no error", test.name)
			continue
		}
		got := strings.ReplaceAll(err.Error(), dir, "DIR")
		if i := strings.Index(got, "text-64-"); i >= 0 {
			got = got[:i] + "FP" + got[i+len("text-64-")+32:]
		}
		if got != test.want {
			t.Errorf("%s: %s\nwant %s", test.name, got, test.want)
		}
	}
}

func TestRelativePathsAreMadeAbsolute(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	if err := os.WriteFile("book.txt", []byte(strings.Repeat("words ", 1000)), 0o644); err != nil {
		t.Fatal(err)
	}
	c, err := parse(t, good)
	if err != nil {
		t.Fatal(err)
	}
	j, err := Open(c)
	if err != nil || !filepath.IsAbs(j.Config.Data.Path) {
		t.Errorf("%v, %v", j, err)
	}
}

// images returns a new folder that holds count images of 28 × 28 pixels, with labels from 0
// to 9, in IDX files.
func images(t *testing.T, count int) string {
	t.Helper()
	dir := t.TempDir()
	pixels := []byte{0, 0, 8, 3, 0, 0, byte(count >> 8), byte(count), 0, 0, 0, 28, 0, 0, 0, 28}
	labels := []byte{0, 0, 8, 1, 0, 0, byte(count >> 8), byte(count)}
	for i := range count {
		labels = append(labels, byte(i%10))
		for p := range 28 * 28 {
			pixels = append(pixels, byte(i*p))
		}
	}
	for name, content := range map[string][]byte{"train-images-idx3-ubyte": pixels, "train-labels-idx1-ubyte": labels} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestPresetsStart checks that every preset can be started. It generates its own images,
// because not every machine has the files that the preset mnist reads.
func TestPresetsStart(t *testing.T) {
	for _, name := range configs.Presets() {
		t.Run(name, func(t *testing.T) {
			var sets []string
			if name == "mnist" {
				sets = append(sets, "data.path="+images(t, 6000))
			}
			c, err := configs.Load(name, sets)
			if err != nil {
				t.Fatal(err)
			}
			j, err := Open(c)
			if err != nil {
				t.Fatal(err)
			}
			if j.Config.Train.Steps < 1 || j.Set.Len() < c.Batch.Effective {
				t.Errorf("%d steps, %d samples", j.Config.Train.Steps, j.Set.Len())
			}
			trainer, err := j.Run().Open(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := trainer.Step(context.Background(), recovery.Plan{Effective: 4, World: 1, Micro: 2}); err != nil {
				t.Error(err)
			}
			if err := trainer.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
