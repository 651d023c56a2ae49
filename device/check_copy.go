package device

// CheckUpload checks [Copier.Upload] of n elements.
func CheckUpload(dst Tensor, n int) { WantFloat("Upload", "dst", dst, n) }

// CheckUploadInts checks [Copier.UploadInts] of n elements.
func CheckUploadInts(dst Tensor, n int) { Want("UploadInts", "dst", dst, n, I32) }

// CheckDownload checks [Copier.Download] of n elements.
func CheckDownload(src Tensor, n int) { WantFloat("Download", "src", src, n) }

// CheckCopy checks [Copier.Copy].
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
