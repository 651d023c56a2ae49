package host

import (
	"fmt"

	"headroom/device"
)

// Upload copies src into dst.
func (d *Device) Upload(dst device.Tensor, src []float32) {
	device.CheckUpload(dst, len(src))
	to := d.floats("Upload", "dst", dst)
	if !d.failed() {
		copy(to, src)
		d.store(dst, to)
	}
}

// UploadInts copies src into dst.
func (d *Device) UploadInts(dst device.Tensor, src []int32) {
	device.CheckUploadInts(dst, len(src))
	to := d.ints("UploadInts", "dst", dst)
	if !d.failed() {
		copy(to, src)
	}
}

// Download copies src into dst. While a failure waits for Sync, Download
// returns an error that wraps that failure, and leaves dst unchanged.
func (d *Device) Download(dst []float32, src device.Tensor) error {
	device.CheckDownload(src, len(dst))
	from := d.floats("Download", "src", src)
	if d.failed() {
		return fmt.Errorf("download: an earlier operation failed: %w", d.pending)
	}
	copy(dst, from)
	return nil
}

// Copy copies src into dst.
func (d *Device) Copy(dst, src device.Tensor) {
	device.CheckCopy(dst, src)
	if dst.DType == device.I32 {
		to, from := d.ints("Copy", "dst", dst), d.ints("Copy", "src", src)
		if !d.failed() {
			copy(to, from)
		}
		return
	}
	to, from := d.floats("Copy", "dst", dst), d.floats("Copy", "src", src)
	if !d.failed() {
		copy(to, from)
		d.store(dst, to)
	}
}
