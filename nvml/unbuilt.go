//go:build !cuda

package nvml

// errUnbuilt is the error of every call in a program built without GPU support.
var errUnbuilt = &UnavailableError{"this program was built without GPU support; build it with make build"}

func gpus() ([]GPU, error) { return nil, errUnbuilt }

func driverVersions() (Driver, error) { return Driver{}, errUnbuilt }

func openXids() (source, error) { return nil, errUnbuilt }
