package driver

// Unavailable is why no NVIDIA driver can be used.
type Unavailable struct {
	Reason string
	Result int // the CUresult, if the driver answered; else 0
}

func (e *Unavailable) Error() string { return "no NVIDIA driver: " + e.Reason }
