//go:build cuda

package cuda

import (
	"unsafe"

	"gorgonia.org/cu"

	"headroom/device"
)

func (g *gpu) Upload(dst device.Tensor, src []float32) {
	device.CheckUpload(dst, len(src))
	g.upload(dst, unsafe.Pointer(unsafe.SliceData(src)))
}

func (g *gpu) UploadInts(dst device.Tensor, src []int32) {
	device.CheckUploadInts(dst, len(src))
	g.upload(dst, unsafe.Pointer(unsafe.SliceData(src)))
}

// upload returns when the driver has taken its copy: the stream is the null
// stream, for which a copy from pageable memory waits.
func (g *gpu) upload(dst device.Tensor, src unsafe.Pointer) {
	if g.pending == nil {
		g.fail("upload", g.bound.do(func() error { return cu.MemcpyHtoD(cu.DevicePtr(dst.Addr), src, int64(dst.Bytes())) }))
	}
}

func (g *gpu) Download(dst []float32, src device.Tensor) error {
	device.CheckDownload(src, len(dst))
	if g.pending == nil {
		g.fail("download", g.bound.do(func() error {
			return cu.MemcpyDtoH(unsafe.Pointer(unsafe.SliceData(dst)), cu.DevicePtr(src.Addr), int64(src.Bytes()))
		}))
	}
	if g.pending == nil {
		g.fail("check indices", g.bound.do(g.scratch.takeFault))
	}
	return g.pending
}

func (g *gpu) Copy(dst, src device.Tensor) {
	device.CheckCopy(dst, src)
	if g.pending == nil {
		g.fail("copy", g.bound.do(func() error {
			return cu.MemcpyDtoDAsync(cu.DevicePtr(dst.Addr), cu.DevicePtr(src.Addr), int64(src.Bytes()), cu.Stream{})
		}))
	}
}
