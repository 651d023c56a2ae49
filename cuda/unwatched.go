//go:build !cuda

package cuda

import (
	"errors"

	"headroom/cuda/driver"
)

// unwatched answers for NVML where the program was built without GPU support.
func unwatched() error {
	err := driver.Load()
	if missing := (*driver.Unavailable)(nil); errors.As(err, &missing) {
		return &NVMLUnavailable{missing.Reason}
	}
	return err
}

func gpus() ([]GPU, error) { return nil, unwatched() }

func driverVersions() (Driver, error) { return Driver{}, unwatched() }

func openXids() (source, error) { return nil, unwatched() }

func countVisible() (int, error) { return 0, driver.Load() }

func uuidOf(int) (string, error) { return "", driver.Load() }
