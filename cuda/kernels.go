//go:build cuda

package cuda

import (
	"embed"
	"fmt"
	"math"
	"slices"
	"unsafe"

	"gorgonia.org/cu"

	"headroom/device"
)

//go:embed kernels/*.ptx
var ptx embed.FS

// kernels holds the kernel files that have been loaded, and their functions by name.
type kernels struct {
	modules   []cu.Module
	functions map[string]cu.Function
}

// sources lists every kernel file and its functions.
var sources = map[string][]string{
	"attention":   append(each("attention_delta"), "attention_addresses", "causal_softmax", "causal_softmax_grad"),
	"elementwise": slices.Concat([]string{"fill", "copy_fb", "copy_bf"}, pairs("add", "dropout"), each("gelu", "gelu_grad", "add_bias")),
	"embed":       {"embed", "embed_grad_positions", "embed_grad_tokens"},
	"flash":       {"flash_64", "flash_keys_64", "flash_queries_64", "flash_128", "flash_keys_128", "flash_queries_128"},
	"layernorm":   pairs("layernorm", "layernorm_dx", "layernorm_pieces"),
	"loss":        each("cross_entropy"),
	"optimizer":   {"adamw", "sgd"},
	"reduce":      append(each("column_sums"), "add_pieces", "sum_pieces", "sum_all"),
}

// each returns the names of the kernels for one operand, which may have either type. pairs
// returns the names of those for two operands; see [types].
func each(names ...string) []string  { return suffixed(names, "_f", "_b") }
func pairs(names ...string) []string { return suffixed(names, "_ff", "_fb", "_bf", "_bb") }

func suffixed(names []string, suffixes ...string) []string {
	var all []string
	for _, name := range names {
		for _, s := range suffixes {
			all = append(all, name+s)
		}
	}
	return all
}

// types returns the suffix of a kernel's name for the types of these operands,
// such as "_fb" for F32 and BF16.
func types(operands ...device.Tensor) string {
	var name [4]byte
	name[0] = '_'
	for i, t := range operands {
		name[i+1] = 'f'
		if t.DType == device.BF16 {
			name[i+1] = 'b'
		}
	}
	return string(name[:len(operands)+1])
}

// loadKernels loads all kernels. It loads those of attention in bfloat16 only if
// the device is opened for bfloat16, because they take a megabyte and do not run on
// every GPU.
func loadKernels(p Precision) (*kernels, error) {
	k := &kernels{functions: map[string]cu.Function{}}
	for file := range sources {
		if file == "flash" {
			continue
		}
		if err := k.load(file); err != nil {
			return k, err
		}
	}
	if p == BF16 {
		return k, k.loadFlash()
	}
	return k, nil
}

func (k *kernels) load(file string) error {
	image, err := ptx.ReadFile("kernels/" + file + ".ptx")
	if err != nil {
		return fmt.Errorf("read kernels: %w", err)
	}
	module, err := cu.LoadData(string(image))
	if err != nil {
		return fault("load the kernels of "+file, err)
	}
	k.modules = append(k.modules, module)
	for _, name := range sources[file] {
		function, err := module.Function(name)
		if err != nil {
			return fault("find the kernel "+name, err)
		}
		k.functions[name] = function
	}
	return nil
}

func (k *kernels) unload() {
	if k == nil {
		return
	}
	for _, m := range k.modules {
		_ = m.Unload() // the context is released next, and the modules with it
	}
}

// shape is a launch's grid and block, and the dynamic shared memory of a block in
// bytes.
type shape struct{ gridX, gridY, blockX, blockY, shared int }

const (
	threads   = 256
	gridLimit = 4096 // most blocks of a kernel whose threads loop over elements; enough to fill any device
)

// walk returns the launch shape of a kernel whose threads loop over n elements.
func walk(n int) shape {
	return shape{gridX: max(1, min(gridLimit, (n+threads-1)/threads)), gridY: 1, blockX: threads, blockY: 1}
}

// warps returns the launch shape of a kernel with one warp per row and eight
// rows per block.
func warps(rows int) shape { return shape{gridX: (rows + 7) / 8, gridY: 1, blockX: 32, blockY: 8} }

// launch queues a kernel, unless an earlier operation has failed. It panics if
// an argument has a type that word does not convert.
func (g *gpu) launch(name string, s shape, arguments ...any) {
	// cu reads eight bytes for every argument, whatever the argument's type.
	words := make([]uint64, len(arguments))
	params := make([]unsafe.Pointer, len(arguments))
	for i, a := range arguments {
		words[i] = word(a)
		params[i] = unsafe.Pointer(&words[i])
	}
	f := g.kernels.functions[name]
	g.call(name, func() error {
		return f.Launch(s.gridX, s.gridY, 1, s.blockX, s.blockY, 1, s.shared, cu.Stream{}, params)
	})
}

// call calls f with the context current, unless an earlier operation has
// failed. It keeps an error of f for Sync.
func (g *gpu) call(what string, f func() error) {
	if g.pending != nil {
		return
	}
	g.fail(what, g.bound.do(func() error {
		if g.profile != nil {
			return g.profile.around(what, f)
		}
		return f()
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
