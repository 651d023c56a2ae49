package cuda

import (
	"errors"
	"testing"

	"headroom/cuda/driver"
	"headroom/nvml"
)

// TestEveryCallAnswers checks that no call crashes, and that a typed error says
// what is missing. It must pass with or without a GPU, with or without NVML,
// and with or without the build tag cuda.
func TestEveryCallAnswers(t *testing.T) {
	for call, ask := range map[string]func() error{
		"Visible":     func() error { _, err := Visible(); return err },
		"GPUOf":       func() error { _, err := GPUOf(0); return err },
		"VisibleGPUs": func() error { _, err := VisibleGPUs(); return err },
	} {
		err := ask()
		var unwatched *nvml.UnavailableError
		var missing *driver.UnavailableError
		if err != nil && !errors.As(err, &unwatched) && !errors.As(err, &missing) {
			t.Errorf("%s: %T: %v", call, err, err)
		}
	}
}
