package main

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"headroom/model"
	"headroom/model/data"
)

// toy returns the flags of a run that takes milliseconds, followed by the flags
// in more.
func toy(more ...string) []string {
	flags := "-device host -precision fp32 -layers 1 -width 8 -heads 2 -vocab 29 -positions 8 -context 6 -micro 2 -steps 3 -warmup 1"
	return append(strings.Fields(flags), more...)
}

// execute runs the program and returns the result that it wrote.
func execute(t *testing.T, args []string) result {
	t.Helper()
	path := filepath.Join(t.TempDir(), "result.json")
	o, err := parseFlags(append(args, "-out", path))
	if err != nil {
		t.Fatal(err)
	}
	if err := run(o); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var r result
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatal(err)
	}
	return r
}

func read(t *testing.T, path string) *contents {
	t.Helper()
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	c, err := parse(file)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestStreamIsThatOfPython compares the stream with numbers that stream.py
// generated.
func TestStreamIsThatOfPython(t *testing.T) {
	s := newStream(7, 5, 9, 50257)
	if got, want := s.sum(), uint32(3892032547); got != want {
		t.Errorf("CRC-32 %d, want %d", got, want)
	}
	if got, want := s.tokens[:10], []int32{13619, 29, 29373, 937, 6, 24837, 1933, 9501, 0, 30594}; !slices.Equal(got, want) {
		t.Errorf("first sample %d, want %d", got, want)
	}
}

func TestStreamIsTakenInOrder(t *testing.T) {
	s := newStream(3, 11, 4, 100)
	order := data.Order{Seed: 3, Len: s.Len()}
	sample := s.Shape().New()
	for position := range s.Len() {
		_, index := order.At(int64(position))
		if err := s.Sample(index, sample); err != nil {
			t.Fatal(err)
		}
		row := s.tokens[position*5 : position*5+5]
		if !slices.Equal(sample.Tokens, row[:4]) || !slices.Equal(sample.Targets, row[1:]) {
			t.Errorf("position %d: %d → %d, want %d", position, sample.Tokens, sample.Targets, row)
		}
	}
}

func TestWeightsComeBack(t *testing.T) {
	folder := t.TempDir()
	first, second := filepath.Join(folder, "1"), filepath.Join(folder, "2")
	a := execute(t, toy("-seed", "1", "-save-weights", first))
	b := execute(t, toy("-seed", "2", "-weights", first, "-save-weights", second))
	if slices.Equal(a.Losses, b.Losses) {
		t.Error("two seeds, one stream of tokens")
	}
	saved, loaded := read(t, first), read(t, second)
	for name := range saved.tensors {
		if name != "headroom.crc32c" && !slices.Equal(saved.of(name), loaded.of(name)) {
			t.Errorf("%s is not what was loaded", name)
		}
	}
}

func TestWeightsOfAnotherModelAreRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weights")
	execute(t, toy("-save-weights", path))
	for flag, want := range map[string]string{"-width": "must be", "-layers": "no tensor h.1."} {
		o, err := parseFlags(toy("-weights", path, flag, map[string]string{"-width": "16", "-layers": "2"}[flag]))
		if err != nil {
			t.Fatal(err)
		}
		if err := run(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", flag, err, want)
		}
	}
}

// TestMomentsAreScaledGradients checks that the saved moments, divided by the
// moment scale, have the norm that the trainer reported for the gradients. It
// does so with and without clipping.
func TestMomentsAreScaledGradients(t *testing.T) {
	for _, clip := range []string{"0", "0.01"} {
		path := filepath.Join(t.TempDir(), "state")
		r := execute(t, toy("-clip", clip, "-gradients", path))
		state, squares := read(t, path), 0.0
		for name := range state.tensors {
			if strings.HasPrefix(name, "adamw.m.") {
				for _, v := range floats(state.of(name)) {
					squares += math.Pow(float64(v)/r.MomentScale, 2)
				}
			}
		}
		if got, want := math.Sqrt(squares), r.GradNorms[0]; math.Abs(got/want-1) > 1e-6 {
			t.Errorf("clip %s: norm %v from the moments, want %v", clip, got, want)
		}
	}
}

func floats(raw []byte) []float32 {
	values := make([]float32, len(raw)/4)
	for i := range values {
		bits := uint32(raw[4*i]) | uint32(raw[4*i+1])<<8 | uint32(raw[4*i+2])<<16 | uint32(raw[4*i+3])<<24
		values[i] = math.Float32frombits(bits)
	}
	return values
}

func TestResult(t *testing.T) {
	r := execute(t, toy("-effective", "5", "-memory", "1,3"))
	if len(r.Losses) != 3 || len(r.StepSeconds) != 3 || r.Losses[0] < 3 || r.Losses[0] > 4 {
		t.Errorf("losses %v, seconds %v: want 3 each, the first near ln 29", r.Losses, r.StepSeconds)
	}
	if want := 5 * 6 / r.Median; r.TokensPerSec != want || r.Median != median(r.StepSeconds[1:]) {
		t.Errorf("%v tokens/s at a median of %v s", r.TokensPerSec, r.Median)
	}
	if len(r.Memory) != 2 || r.Memory[0].Micro != 1 || r.Memory[0].Bytes >= r.Memory[1].Bytes {
		t.Errorf("memory %v: want it to grow from 1 sample to 3", r.Memory)
	}
}

// TestPrecision checks that losses in mixed precision are near those in
// float32, but not equal to them.
func TestPrecision(t *testing.T) {
	full, mixed := execute(t, toy()).Losses, execute(t, toy("-precision", "bf16")).Losses
	for i, want := range full {
		if off := math.Abs(mixed[i]/want - 1); off == 0 || off > 1e-2 {
			t.Errorf("step %d: loss %v in bf16, %v in fp32", i+1, mixed[i], want)
		}
	}
}

// TestWhatWasMeasuredBeforeAFailureIsWritten checks that a run that fails still
// writes what it had measured.
func TestWhatWasMeasuredBeforeAFailureIsWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "result.json")
	o, err := parseFlags(toy("-limit", "0.003", "-memory", "1,100000", "-out", path))
	if err != nil {
		t.Fatal(err)
	}
	if err := run(o); err == nil {
		t.Fatal("100000 samples fit 3 MiB")
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var r result
	if err := json.Unmarshal(text, &r); err != nil || len(r.Losses) != 3 || len(r.Memory) != 1 {
		t.Errorf("%v: %d losses, %d sizes of memory, want 3 and 1", err, len(r.Losses), len(r.Memory))
	}
}

func TestFlagsThatMakeNoSense(t *testing.T) {
	for _, args := range [][]string{
		{"-context", "2048"}, {"-micro", "0"}, {"-steps", "-1"}, {"-vocab", "2000000"}, {"-memory", "4,x"}, {"left"},
		{"-precision", "fp16"}, {"-device", "host", "-precision", "tf32"}, {"-device", "host", "-precision", "bf16", "-profile", "p.md"},
	} {
		if _, err := parseFlags(args); err == nil {
			t.Errorf("%q was taken", args)
		}
	}
}

func TestMomentScale(t *testing.T) {
	o := model.Optimizer{Beta1: 0.5, Clip: 2}
	if got := momentScale(o, 1); got != 0.5 {
		t.Errorf("below the clip: %v, want 0.5", got)
	}
	if got := momentScale(o, 8); got != 0.125 {
		t.Errorf("four times the clip: %v, want 0.125", got)
	}
}
