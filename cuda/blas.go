//go:build cuda

package cuda

/*
#cgo LDFLAGS: -ldl
#include "blas.h"
#include <stdlib.h>
*/
import "C"

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unsafe"

	"headroom/cuda/driver"
	"headroom/device"
)

// blas is an opened cuBLAS library.
type blas struct {
	handle  *C.headroom_blas
	compute C.int // a cublasComputeType_t
}

// computeTypes holds the cublasComputeType_t of float32 products in each
// precision.
var computeTypes = map[Precision]C.int{"": exact, FP32: exact, TF32: 77, BF16: exact}

// dataTypes holds the cudaDataType of each element type that a product may
// have.
var dataTypes = map[device.DType]C.int{device.F32: 0, device.BF16: 14}

// blasFiles are the versions of cuBLAS that can be used, newest first.
var blasFiles = []string{"libcublas.so.13", "libcublas.so.12", "libcublas.so.11"}

// blasFolders are the folders that are searched for cuBLAS after the loader's own path.
// They belong to CUDA toolkits, or to PyTorch installations, which include a copy of
// cuBLAS.
var blasFolders = []string{
	"/usr/local/cuda*/lib64", "/usr/local/cuda*/targets/x86_64-linux/lib", "/opt/cuda/lib64",
	"/usr/lib/python3*/dist-packages/nvidia/*/lib",
	"/usr/local/lib/python3*/*-packages/nvidia/*/lib",
	"/opt/*/lib/python3*/site-packages/nvidia/*/lib",
	"/opt/*/.venv/lib/python3*/site-packages/nvidia/*/lib",
}

// blasPaths returns the paths at which to look for cuBLAS, in order.
// HEADROOM_CUBLAS, which may name a file or a folder, comes first.
func blasPaths() []string {
	var paths []string
	folders := blasFolders
	for _, root := range []string{os.Getenv("VIRTUAL_ENV"), os.Getenv("CONDA_PREFIX")} {
		if root != "" {
			folders = append([]string{filepath.Join(root, "lib/python3*/site-packages/nvidia/*/lib"), filepath.Join(root, "lib")}, folders...)
		}
	}
	if own := os.Getenv("HEADROOM_CUBLAS"); own != "" {
		paths = append(paths, own)
		folders = append([]string{own}, folders...)
	}
	paths = append(paths, blasFiles...)
	for _, folder := range folders {
		for _, file := range blasFiles {
			found, err := filepath.Glob(filepath.Join(folder, file))
			if err == nil {
				paths = append(paths, found...)
			}
		}
	}
	return slices.Compact(paths)
}

// openBLAS opens the first library of blasPaths that can be opened. If there is none,
// the error is a *driver.UnavailableError that says where it looked.
func openBLAS(p Precision) (*blas, error) {
	var tried []string
	for _, path := range blasPaths() {
		name := C.CString(path)
		var why *C.char
		handle := C.headroom_blas_open(name, &why)
		C.free(unsafe.Pointer(name))
		if handle != nil {
			return &blas{handle: handle, compute: computeTypes[p]}, nil
		}
		tried = append(tried, C.GoString(why))
	}
	return nil, &driver.UnavailableError{Reason: fmt.Sprintf("cuBLAS was not found; looked for %s on the loader's path and in %s; "+
		"install the CUDA toolkit or PyTorch, or set HEADROOM_CUBLAS to the library; tried: %s",
		strings.Join(blasFiles, ", "), strings.Join(blasFolders, ", "), strings.Join(tried, "; "))}
}

// start creates cuBLAS's handle with the given workspace of blasBytes. The
// context must be current.
func (b *blas) start(workspace device.Addr) error {
	if err := b.check(C.headroom_blas_start(b.handle, C.uint64_t(workspace), C.size_t(blasBytes))); err != nil {
		return fmt.Errorf("start cuBLAS: %w", err)
	}
	return nil
}

func (b *blas) close() { C.headroom_blas_close(b.handle) }

// check returns the error that a cublasStatus_t stands for, or nil if the
// status is success.
func (b *blas) check(status C.int) error {
	names := map[C.int]string{1: "NOT_INITIALIZED", 3: "ALLOC_FAILED", 7: "INVALID_VALUE", 8: "ARCH_MISMATCH", 11: "MAPPING_ERROR", 13: "EXECUTION_FAILED", 14: "INTERNAL_ERROR", 15: "NOT_SUPPORTED"}
	if status == 0 {
		return nil
	}
	return fmt.Errorf("CUBLAS_STATUS_%s (%d)", names[status], status)
}

// exact is cuBLAS's compute type for float32 throughout, and for bfloat16
// products that are summed in float32.
const exact = 68

// product computes c = op(a)·op(b) + beta·c, where c is m×n and all matrices are
// row-major. cuBLAS reads matrices as column-major, so it sees the transpose of
// each, and is asked for cᵀ = op(b)ᵀ·op(a)ᵀ + beta·cᵀ.
func (g *gpu) product(c, a, b device.Tensor, p device.MatMul) {
	strideA, strideB := p.K, p.N
	if p.TransA {
		strideA = p.M
	}
	if p.TransB {
		strideB = p.K
	}
	l, compute := g.blas, g.blas.compute
	if a.DType == device.BF16 {
		compute = exact
	}
	what := "matrix product"
	if g.profile != nil {
		what = fmt.Sprintf("matrix product %d×%d×%d%s", p.M, p.N, p.K, types(c, a))
	}
	g.call(what, func() error {
		return l.check(C.headroom_blas_product(l.handle, compute, flag(p.TransB), flag(p.TransA), C.int(p.N), C.int(p.M), C.int(p.K), 1,
			C.uint64_t(b.Addr), C.int(strideB), C.uint64_t(a.Addr), C.int(strideA), dataTypes[a.DType],
			C.float(p.Beta), C.uint64_t(c.Addr), C.int(p.N), dataTypes[c.DType]))
	})
}

// matrix describes a batch of row-major float32 matrices: at is the device address of an
// array that holds the addresses of the matrices, and stride is the number of elements
// from the start of one row to the start of the next.
type matrix struct {
	at     device.Addr
	stride int
	offset int // a multiple of 4 if every matrix starts at a multiple of 16 bytes
}

// products computes c = alpha·op(a)·op(b) + beta·c for each of the count
// matrices in the batches.
func (g *gpu) products(c, a, b matrix, p device.MatMul, alpha float32, count int) {
	l, compute := g.blas, g.blas.compute
	if !aligned(a, b, c) {
		compute = exact
	}
	g.call("matrix products", func() error {
		return l.check(C.headroom_blas_products(l.handle, compute, flag(p.TransB), flag(p.TransA), C.int(p.N), C.int(p.M), C.int(p.K), C.float(alpha),
			C.uint64_t(b.at), C.int(b.stride), C.uint64_t(a.at), C.int(a.stride), C.float(p.Beta), C.uint64_t(c.at), C.int(c.stride), C.int(count)))
	})
}

// aligned reports whether the matrices of a batch may be read 16 bytes at a time.
// cuBLAS cannot see their addresses, and assumes this alignment where it uses the
// tensor cores.
func aligned(batch ...matrix) bool {
	for _, m := range batch {
		if m.stride%4 != 0 || m.offset%4 != 0 {
			return false
		}
	}
	return true
}

func flag(b bool) C.int {
	if b {
		return 1
	}
	return 0
}
