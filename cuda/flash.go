//go:build cuda

package cuda

/*
#include <cuda.h>
*/
import "C"

import (
	"fmt"
	"unsafe"

	"headroom/device"
)

// flashRows is how many positions of a head a thread block handles at a time in bfloat16
// attention.
const flashRows = 64

// flashKernels are the kernels for heads of at most as many channels as its field
// channels says.
type flashKernels struct {
	channels int // the channels that tiles have room for
	stages   int // tiles in shared memory at once, for each operand that a kernel loops over
}

func flashFor(channels int) flashKernels {
	if channels <= 64 {
		return flashKernels{64, 2}
	}
	return flashKernels{MostChannels, 1}
}

// flashParts describes what each kernel keeps in shared memory. The key is the part of a
// kernel's name that distinguishes it from the others. Every kernel keeps two tiles per
// stage; tiles is the number of tiles that it keeps besides those. floats is the number
// of floats that it keeps per row and stage.
var flashParts = map[string]struct{ tiles, floats int }{"": {1, 0}, "keys_": {2, 2}, "queries_": {2, 0}}

// shared returns the dynamic shared memory of a block, in bytes.
func (f flashKernels) shared(part string) int {
	p := flashParts[part]
	return (p.tiles+2*f.stages)*flashRows*(f.channels+8)*2 + f.stages*p.floats*flashRows*4
}

func (f flashKernels) name(part string) string { return fmt.Sprintf("flash_%s%d", part, f.channels) }

// loadFlash loads the kernels and requests the shared memory that they need,
// because the driver grants more than 48 KiB per block only on request.
func (k *kernels) loadFlash() error {
	if err := k.load("flash"); err != nil {
		return err
	}
	for _, channels := range []int{64, MostChannels} {
		f := flashFor(channels)
		for part := range flashParts {
			bytes := f.shared(part)
			function := k.functions[f.name(part)]
			handle := *(*C.CUfunction)(unsafe.Pointer(&function)) // cu's type holds only the handle
			if result := C.cuFuncSetAttribute(handle, C.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, C.int(bytes)); result != 0 {
				return fmt.Errorf("allow %s %d bytes of shared memory: CUresult %d", f.name(part), bytes, int(result))
			}
		}
	}
	return nil
}

// launchFlash runs one of the kernels over all heads. rows are the tensors whose
// rows hold the channels of a position; if their alignment allows it, the kernel
// moves eight channels at a time.
func (g *gpu) launchFlash(part string, s device.Attention, rows []device.Tensor, arguments ...any) {
	f := flashFor(s.D)
	by8 := 1
	for _, t := range rows {
		if s.D%8 != 0 || t.Addr%16 != 0 {
			by8 = 0
		}
	}
	grid := shape{gridX: s.B * s.H, gridY: (s.T + flashRows - 1) / flashRows, blockX: 128, blockY: 1, shared: f.shared(part)}
	g.launch(f.name(part), grid, append(arguments, s.T, s.H, s.D, by8, scale(s))...)
}

// ready loads the kernels if necessary, and reports whether they can run on heads
// of this size. If not, Sync will return an error.
func (g *gpu) ready(s device.Attention) bool {
	if s.D > MostChannels && g.pending == nil {
		g.pending = fmt.Errorf("attention heads of %d channels: must be at most %d in bfloat16; use more heads, or another precision", s.D, MostChannels)
	}
	if _, loaded := g.kernels.functions["flash_64"]; !loaded {
		g.call("load the attention kernels", g.kernels.loadFlash)
	}
	return g.pending == nil
}

func (g *gpu) flash(out, lse, qkv device.Tensor, s device.Attention) {
	if g.ready(s) {
		g.launchFlash("", s, []device.Tensor{out, qkv}, out, lse, qkv)
	}
}

func (g *gpu) flashGrad(dqkv, delta, dout, qkv, lse device.Tensor, s device.Attention) {
	if !g.ready(s) {
		return
	}
	rows := []device.Tensor{dqkv, dout, qkv}
	g.launchFlash("keys_", s, rows, dqkv, delta, dout, qkv, lse)
	g.launchFlash("queries_", s, rows, dqkv, delta, dout, qkv, lse)
}
