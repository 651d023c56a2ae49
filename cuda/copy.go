//go:build cuda

package cuda

import (
	"unsafe"

	"gorgonia.org/cu"

	"headroom/device"
)

func (g *gpu) Upload(dst device.Tensor, src []float32) {
	device.CheckUpload(dst, len(src))
	if dst.DType == device.BF16 {
		rounded := make([]uint16, len(src))
		for i, v := range src {
			rounded[i] = device.ToBF16(v)
		}
		g.upload(dst, unsafe.Pointer(unsafe.SliceData(rounded)))
		return
	}
	g.upload(dst, unsafe.Pointer(unsafe.SliceData(src)))
}

func (g *gpu) UploadInts(dst device.Tensor, src []int32) {
	device.CheckUploadInts(dst, len(src))
	g.upload(dst, unsafe.Pointer(unsafe.SliceData(src)))
}

// upload copies as many bytes from src as dst holds.
func (g *gpu) upload(dst device.Tensor, src unsafe.Pointer) {
	g.call("upload", func() error {
		return g.staging.send(cu.DevicePtr(dst.Addr), unsafe.Slice((*byte)(src), int(dst.Bytes())))
	})
}

func (g *gpu) Download(dst []float32, src device.Tensor) error {
	device.CheckDownload(src, len(dst))
	if src.DType == device.BF16 {
		rounded := make([]uint16, len(dst))
		g.download(unsafe.Pointer(unsafe.SliceData(rounded)), src)
		if g.pending != nil {
			return g.pending
		}
		for i, v := range rounded {
			dst[i] = device.FromBF16(v)
		}
		return nil
	}
	g.download(unsafe.Pointer(unsafe.SliceData(dst)), src)
	return g.pending
}

func (g *gpu) download(dst unsafe.Pointer, src device.Tensor) {
	g.call("download", func() error { return cu.MemcpyDtoH(dst, cu.DevicePtr(src.Addr), int64(src.Bytes())) })
	g.call("check indices", g.scratch.takeFault)
}

func (g *gpu) Copy(dst, src device.Tensor) {
	device.CheckCopy(dst, src)
	if dst.DType != src.DType {
		q := quads(dst.Len, dst, src)
		g.launch("copy"+types(dst, src), walk(dst.Len-3*q), dst, src, q, dst.Len)
		return
	}
	g.call("copy", func() error {
		return cu.MemcpyDtoDAsync(cu.DevicePtr(dst.Addr), cu.DevicePtr(src.Addr), int64(src.Bytes()), cu.Stream{})
	})
}
