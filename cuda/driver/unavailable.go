package driver

// UnavailableError reports why no NVIDIA driver can be used.
type UnavailableError struct {
	Reason string
	Result int // the CUresult, if the driver answered; else 0
}

func (e *UnavailableError) Error() string { return "no NVIDIA driver: " + e.Reason }
