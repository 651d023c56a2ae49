package model

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"maps"
	"slices"
	"strings"
	"testing"
)

// TestDamagedCheckpoints checks that Load refuses damaged checkpoints and then
// leaves the trainer unchanged. It cuts a checkpoint off at offsets throughout
// its header and contents, and changes single bytes at such offsets.
func TestDamagedCheckpoints(t *testing.T) {
	tr, _ := tiny(MLP).open(t)
	steps(t, tr, 1, plan(4, 4))
	saved := save(t, tr)
	steps(t, tr, 1, plan(4, 4))
	before := capture(t, tr)
	contents := 8 + int(binary.LittleEndian.Uint64(saved))
	refused := func(what string, at int, input []byte, says string) {
		t.Helper()
		err := tr.Load(bytes.NewReader(input))
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Fatalf("%s at %d of %d: error %v, want one that says %q", what, at, len(saved), err, says)
		}
		if tr.broken != nil {
			t.Fatalf("%s at %d: %v", what, at, tr.broken)
		}
	}
	for at := 0; at < len(saved); at += step(at, contents, 197) {
		refused("cut", at, saved[:at], "cut short")
	}
	for at := 0; at < len(saved); at += step(at, contents, 189) {
		garbled := slices.Clone(saved)
		garbled[at] ^= 0x15
		refused("garbled", at, garbled, "load: ")
	}
	refused("cut", len(saved)-1, saved[:len(saved)-1], "cut short")
	refused("longer", len(saved), append(slices.Clone(saved), 0), "after its end")
	refused("text", 0, []byte("step,loss\n1,5.5\n2,5.1\n"), "not a safetensors file")
	same(t, "after damaged checkpoints", capture(t, tr), before)
	load(t, tr, saved)
}

// step returns the distance to the next offset to damage: small in the header,
// large in the contents.
func step(at, contents, large int) int {
	if at < contents {
		return stride(5)
	}
	return large
}

// vanishing is a file that can be read once. The second time, reading fails
// near the end.
type vanishing struct {
	*bytes.Reader
	seeks int
}

func (v *vanishing) Seek(offset int64, whence int) (int64, error) {
	v.seeks++
	return v.Reader.Seek(offset, whence)
}

func (v *vanishing) Read(p []byte) (int, error) {
	if v.seeks > 1 && v.Len() < 2000 {
		return 0, errors.New("disk gone")
	}
	return v.Reader.Read(p)
}

func TestCheckpointThatVanishesStopsTheTrainer(t *testing.T) {
	tr, _ := tiny(MLP).open(t)
	saved := save(t, tr)
	steps(t, tr, 1, plan(4, 4))
	if err := tr.Load(&vanishing{Reader: bytes.NewReader(saved)}); err == nil || !strings.Contains(err.Error(), "disk gone") {
		t.Fatalf("error %v", err)
	}
	if _, err := tr.Step(t.Context(), plan(4, 4)); err == nil {
		t.Error("a step on weights that are half loaded")
	}
	load(t, tr, saved)
	steps(t, tr, 1, plan(4, 4))
}

type full struct{ room int }

func (w *full) Write(p []byte) (int, error) {
	if w.room -= len(p); w.room < 0 {
		return 0, errors.New("disk full")
	}
	return len(p), nil
}

func TestSaveSaysWhenTheDiskIsFull(t *testing.T) {
	tr, _ := tiny(GPT).open(t)
	size := len(save(t, tr))
	for room := 0; room < size; room += size/20 + 1 {
		if err := tr.Save(&full{room}); err == nil || !strings.Contains(err.Error(), "disk full") {
			t.Errorf("room for %d of %d bytes: error %v", room, size, err)
		}
	}
}

// TestForeignSafetensors checks that Load refuses files that are well formed
// but are not checkpoints of this run.
func TestForeignSafetensors(t *testing.T) {
	tr, _ := tiny(MLP).open(t)
	good := tr.header()
	for what, change := range map[string]func(*header){
		"not a headroom checkpoint": func(h *header) { h.metadata = nil },
		"reads 1":                   func(h *header) { h.metadata["headroom.version"] = "2" },
		"tensors":                   func(h *header) { h.entries = h.entries[:3] },
		"was expected":              func(h *header) { h.entries[1].DType = "F16" },
		"step \"-1\"":               func(h *header) { h.metadata["step"] = "-1" },
	} {
		h := &header{metadata: maps.Clone(good.metadata), entries: slices.Clone(good.entries)}
		change(h)
		var b bytes.Buffer
		if err := h.write(&b); err != nil {
			t.Fatal(err)
		}
		b.Write(make([]byte, h.size()-4))
		b.Write(binary.LittleEndian.AppendUint32(nil, crc32.Checksum(b.Bytes(), crc32.MakeTable(crc32.Castagnoli))))
		if err := tr.Load(&b); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("error %v, want one that says %q", err, what)
		}
	}
}

func FuzzLoad(f *testing.F) {
	s := tiny(MLP)
	s.spec.Width, s.set = 2, points{n: 5, features: 2, classes: 2}
	tr, _ := s.open(f)
	saved := save(f, tr)
	f.Add(saved)
	f.Add(saved[:len(saved)/2])
	f.Add([]byte("\x02\x00\x00\x00\x00\x00\x00\x00{}"))
	before := capture(f, tr)
	f.Fuzz(func(t *testing.T, input []byte) {
		err := tr.Load(bytes.NewReader(input))
		if err != nil && tr.broken != nil {
			t.Fatalf("%v", tr.broken)
		}
		if err != nil {
			same(t, "after an input that was refused", capture(t, tr), before)
		}
		before = capture(t, tr)
	})
}
