package driver

// UnavailableError reports why no NVIDIA driver can be used.
type UnavailableError struct {
	Reason string
	Result int // the CUresult that the driver returned; 0 if the driver was not called
}

func (e *UnavailableError) Error() string { return "no CUDA device: " + e.Reason }
