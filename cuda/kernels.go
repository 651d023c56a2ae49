//go:build cuda

package cuda

import (
	"embed"
	"fmt"
	"math"
	"unsafe"

	"gorgonia.org/cu"

	"headroom/device"
)

//go:embed kernels/*.ptx
var ptx embed.FS

// kernels are the functions of all kernel files, by name.
type kernels struct {
	modules   []cu.Module
	functions map[string]cu.Function
}

// sources names every kernel file and its functions.
var sources = map[string][]string{
	"attention":   {"attention_addresses", "causal_softmax", "attention_delta", "causal_softmax_grad"},
	"elementwise": {"fill", "add", "gelu", "gelu_grad", "add_bias", "dropout"},
	"embed":       {"embed", "embed_grad_positions", "embed_grad_tokens"},
	"layernorm":   {"layernorm", "layernorm_dx", "layernorm_pieces"},
	"loss":        {"cross_entropy"},
	"optimizer":   {"adamw", "sgd"},
	"reduce":      {"column_sums", "add_pieces", "sum_pieces", "sum_all"},
}

func loadKernels() (kernels, error) {
	k := kernels{functions: map[string]cu.Function{}}
	for file, names := range sources {
		image, err := ptx.ReadFile("kernels/" + file + ".ptx")
		if err != nil {
			return k, fmt.Errorf("read kernels: %w", err)
		}
		module, err := cu.LoadData(string(image))
		if err != nil {
			return k, fault("load the kernels of "+file, err)
		}
		k.modules = append(k.modules, module)
		for _, name := range names {
			if k.functions[name], err = module.Function(name); err != nil {
				return k, fault("find the kernel "+name, err)
			}
		}
	}
	return k, nil
}

func (k kernels) unload() {
	for _, m := range k.modules {
		_ = m.Unload() // the context goes next and takes them along
	}
}

// shape is a launch's grid and block.
type shape struct{ gridX, gridY, blockX, blockY int }

const (
	threads   = 256
	gridLimit = 4096 // blocks of a kernel that walks the grid; enough to fill any device
)

// walk is the shape for a kernel that walks n elements.
func walk(n int) shape {
	return shape{gridX: max(1, min(gridLimit, (n+threads-1)/threads)), gridY: 1, blockX: threads, blockY: 1}
}

// warps is the shape for a kernel of one warp a row, eight rows a block.
func warps(rows int) shape { return shape{gridX: (rows + 7) / 8, gridY: 1, blockX: 32, blockY: 8} }

// launch runs a kernel. Arguments are of the types that kernels take.
func (g *gpu) launch(name string, s shape, arguments ...any) {
	if g.pending != nil {
		return
	}
	// cu reads eight bytes for every argument, whatever its type.
	words := make([]uint64, len(arguments))
	params := make([]unsafe.Pointer, len(arguments))
	for i, a := range arguments {
		words[i] = word(a)
		params[i] = unsafe.Pointer(&words[i])
	}
	f := g.kernels.functions[name]
	g.fail("launch "+name, g.bound.do(func() error {
		return f.Launch(s.gridX, s.gridY, 1, s.blockX, s.blockY, 1, 0, cu.Stream{}, params)
	}))
}

func word(a any) uint64 {
	switch v := a.(type) {
	case device.Tensor:
		return uint64(v.Addr)
	case device.Addr:
		return uint64(v)
	case int:
		return uint64(v) // little-endian: a kernel's int takes the low half
	case uint32:
		return uint64(v)
	case uint64:
		return v
	case float32:
		return uint64(math.Float32bits(v))
	}
	panic(fmt.Sprintf("cuda: kernel argument of type %T", a))
}
