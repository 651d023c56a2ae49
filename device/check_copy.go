package device

// CheckUpload checks [Copier.Upload] of n elements.
func CheckUpload(dst Tensor, n int) { Want("Upload", "dst", dst, n, F32) }

// CheckUploadInts checks [Copier.UploadInts] of n elements.
func CheckUploadInts(dst Tensor, n int) { Want("UploadInts", "dst", dst, n, I32) }

// CheckDownload checks [Copier.Download] of n elements.
func CheckDownload(src Tensor, n int) { Want("Download", "src", src, n, F32) }

// CheckCopy checks [Copier.Copy]: two tensors of one length and one type,
// whichever that is.
func CheckCopy(dst, src Tensor) {
	t := F32
	if dst.DType == I32 {
		t = I32
	}
	Want("Copy", "dst", dst, dst.Len, t)
	Want("Copy", "src", src, dst.Len, t)
}
