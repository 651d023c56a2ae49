package device

// CheckUpload panics with a *[ShapeError] unless dst fits a [Copier.Upload] of
// n elements.
func CheckUpload(dst Tensor, n int) { WantFloat("Upload", "dst", dst, n) }

// CheckUploadInts panics with a *[ShapeError] unless dst fits a
// [Copier.UploadInts] of n elements.
func CheckUploadInts(dst Tensor, n int) { Want("UploadInts", "dst", dst, n, I32) }

// CheckDownload panics with a *[ShapeError] unless src fits a [Copier.Download]
// of n elements.
func CheckDownload(src Tensor, n int) { WantFloat("Download", "src", src, n) }

// CheckCopy panics with a *[ShapeError] unless the operands fit [Copier.Copy].
func CheckCopy(dst, src Tensor) {
	const op = "Copy"
	if dst.DType == I32 {
		Want(op, "dst", dst, dst.Len, I32)
		Want(op, "src", src, dst.Len, I32)
		return
	}
	WantFloat(op, "dst", dst, dst.Len)
	WantFloat(op, "src", src, dst.Len)
}
