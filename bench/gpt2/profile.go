package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"headroom/cuda"
	"headroom/device"
	"headroom/model"
	"headroom/recovery"
)

// profile runs one more step and writes how long each kind of work took on the GPU.
func profile(t *model.Trainer, dev device.Device, o options) error {
	if o.profile == "" {
		return nil
	}
	stop, err := cuda.Profile(dev)
	if err != nil {
		return err
	}
	start := time.Now()
	if _, err := t.Step(context.Background(), recovery.Plan{Effective: o.effective, World: 1, Micro: o.micro}); err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	wall := time.Since(start)
	timed, err := stop()
	if err != nil {
		return err
	}
	return os.WriteFile(o.profile, []byte(table(timed, wall)), 0o644)
}

func table(timed []cuda.Timed, wall time.Duration) string {
	var b strings.Builder
	var all time.Duration
	for _, k := range timed {
		all += k.Time
	}
	fmt.Fprintf(&b, "| what | calls | ms | share |\n|---|---:|---:|---:|\n")
	for _, k := range timed {
		fmt.Fprintf(&b, "| %s | %d | %.3f | %.1f %% |\n", k.Name, k.Calls, k.Time.Seconds()*1e3, 100*k.Time.Seconds()/all.Seconds())
	}
	fmt.Fprintf(&b, "| all | | %.3f | |\n\nThe step took %.3f ms with the timing.\n", all.Seconds()*1e3, wall.Seconds()*1e3)
	return b.String()
}
