package host

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"headroom/device"
	"headroom/memory"
)

func TestOpen(t *testing.T) {
	for _, o := range []Options{{}, {Capacity: -1}, {Capacity: 1, Workers: -1}} {
		if d, err := Open(o); err == nil || d != nil {
			t.Errorf("Open(%+v) = %v, %v; want an error", o, d, err)
		}
	}
	for name, want := range map[string]string{"": "host", "laptop": "laptop"} {
		d, err := Open(Options{Capacity: memory.MiB, Name: name})
		if err != nil || d.Name() != want {
			t.Errorf("named %q: %q, %v", name, d.Name(), err)
		}
	}
}

// TestSetForeign checks that SetForeign takes unused memory, leaves tensors
// alone, and can be undone.
func TestSetForeign(t *testing.T) {
	const capacity = 64 * memory.MiB
	d, err := Open(Options{Capacity: capacity})
	if err != nil {
		t.Fatal(err)
	}
	kept, _ := d.Alloc(4<<20, device.F32)
	idle, _ := d.Alloc(8<<20, device.F32)
	d.Fill(kept, 5)
	d.Free(idle)
	d.SetForeign(40 * memory.MiB)
	if s := d.Stats(); s.Foreign != 40*memory.MiB || s.Reserved != 16*memory.MiB || s.Free != 8*memory.MiB || s.Capacity != capacity {
		t.Errorf("squeezed: %+v", s)
	}
	var oom *memory.OutOfMemoryError
	if _, err := d.Alloc(4<<20, device.F32); !errors.As(err, &oom) || oom.Stats.Foreign != 40*memory.MiB {
		t.Errorf("alloc under the squeeze: %v", err)
	}
	d.SetForeign(60 * memory.MiB) // more than is left: reserved memory stays, and nothing is free
	if s := d.Stats(); s.Free != 0 || s.Reserved != 16*memory.MiB {
		t.Errorf("squeezed below what is held: %+v", s)
	}
	d.SetForeign(-1)
	if s := d.Stats(); s.Foreign != 0 || s.Free != 48*memory.MiB {
		t.Errorf("after the squeeze: %+v", s)
	}
	values := make([]float32, kept.Len)
	if err := d.Download(values, kept); err != nil || values[0] != 5 || values[len(values)-1] != 5 {
		t.Errorf("the squeeze changed a tensor: %v, %v", values[0], err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		t.Error(err)
	}
}

// mapped reports whether the operating system has memory mapped at a.
func mapped(t *testing.T, a device.Addr) bool {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Skipf("the system does not tell what is mapped: %v", err)
	}
	for line := range strings.Lines(string(maps)) {
		var from, to uint64
		if _, err := fmt.Sscanf(line, "%x-%x", &from, &to); err == nil && uint64(a) >= from && uint64(a) < to {
			return true
		}
	}
	return false
}

func TestMemoryGoesBackToTheSystem(t *testing.T) {
	d, err := Open(Options{Capacity: 64 * memory.MiB})
	if err != nil {
		t.Fatal(err)
	}
	a, _ := d.Alloc(4<<20, device.F32)
	b, _ := d.Alloc(6<<20, device.F32)
	if !mapped(t, a.Addr) || !mapped(t, b.Addr) {
		t.Error("a tensor lies where no memory is mapped")
	}
	d.Free(a)
	if !mapped(t, a.Addr) {
		t.Error("a freed tensor's segment was not kept for the next one")
	}
	if _, err := d.EmptyCache(); err != nil || mapped(t, a.Addr) || !mapped(t, b.Addr) {
		t.Errorf("EmptyCache: %v; freed segment mapped %v, live one %v", err, mapped(t, a.Addr), mapped(t, b.Addr))
	}
	if err := d.Close(); err != nil || mapped(t, b.Addr) {
		t.Errorf("Close: %v; memory still mapped: %v", err, mapped(t, b.Addr))
	}
	if err := panicked(func() { d.Fill(b, 1) }); !isShape(err) {
		t.Errorf("an operation on a closed device: %v, want a *device.ShapeError", err)
	}
}

func TestForeignAddress(t *testing.T) {
	d, err := Open(Options{Capacity: 64 * memory.MiB})
	if err != nil {
		t.Fatal(err)
	}
	x, _ := d.Alloc(8<<20, device.F32)
	for name, wrong := range map[string]device.Tensor{
		"before":    {Addr: x.Addr - 4, Len: 1, DType: device.F32},
		"behind":    {Addr: x.Addr + 32<<20, Len: 1, DType: device.F32},
		"over":      {Addr: x.Addr + 4, Len: 8 << 20, DType: device.F32},
		"odd":       {Addr: x.Addr + 2, Len: 1, DType: device.F32},
		"elsewhere": {Addr: 64, Len: 1, DType: device.F32},
		"huge":      {Addr: x.Addr, Len: math.MaxInt / 8, DType: device.F32},
	} {
		if err := panicked(func() { d.Fill(wrong, 1) }); !isShape(err) {
			t.Errorf("%s: %v, want a *device.ShapeError", name, err)
		}
	}
	for name, wrong := range map[string]device.Tensor{
		"over": {Addr: x.Addr + 2, Len: 16 << 20, DType: device.BF16},
		"odd":  {Addr: x.Addr + 1, Len: 1, DType: device.BF16},
	} {
		if err := panicked(func() { d.Upload(wrong, make([]float32, wrong.Len)) }); !isShape(err) {
			t.Errorf("%s of BF16: %v, want a *device.ShapeError", name, err)
		}
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

func TestPoison(t *testing.T) {
	k := newDesk(t, 1)
	for _, dtype := range []device.DType{device.F32, device.BF16} {
		x := k.out(1000)
		k.d.Fill(x, 1)
		k.d.Free(x)
		for _, bits := range k.bits(k.alloc(dtype, 1000)) {
			if !math.IsNaN(float64(math.Float32frombits(bits))) {
				t.Fatalf("a fresh tensor of %v of a poisoned device holds a number", dtype)
			}
		}
	}
	ids, _ := k.d.Alloc(4, device.I32)
	k.d.Embed(k.out(4), ids, k.random(9), k.random(4), device.Embed{B: 1, T: 4, C: 1, V: 9})
	if k.d.Sync() == nil {
		t.Error("fresh integers of a poisoned device are tokens")
	}
}

func panicked(f func()) (err error) {
	defer func() { err, _ = recover().(error) }()
	f()
	return nil
}

func isShape(err error) bool {
	var shape *device.ShapeError
	return errors.As(err, &shape)
}
