package wrap

import (
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"headroom/wrap/exits"
)

// hangWatch watches a command for a lack of any sign of life: no output, no kernel on its
// GPUs, no newer checkpoint. A collective that waits for a dead rank looks like that, but
// so does a long evaluation on the CPU. So a hang is only reported, unless the user wants
// a hanging command to be restarted.
type hangWatch struct {
	after time.Duration // how long without a sign of life counts as a hang; 0 to report none
	now   func() time.Time
	saved func() time.Time // when the newest checkpoint was written; zero if there is none

	sign atomic.Int64 // newest sign of life, in Unix nanoseconds
	gpu  atomic.Bool  // the command has used a GPU: without one, work cannot be told from a hang
	said bool         // the current hang has been reported
}

// alive records a sign of life. It may be called from any goroutine.
func (h *hangWatch) alive() { h.sign.Store(h.now().UnixNano()) }

// onGPU records that the command uses a GPU. If a kernel ran there, that is a sign of
// life.
func (h *hangWatch) onGPU(kernel bool) {
	h.gpu.Store(true)
	if kernel {
		h.alive()
	}
}

// hangs reports whether there has been no sign of life for too long. It returns true only
// once for each hang. It looks for a newer checkpoint last, because that reads the disk.
func (h *hangWatch) hangs() bool {
	if h.after <= 0 || !h.gpu.Load() {
		return false
	}
	now := h.now()
	quiet := func(since time.Time) bool { return now.Sub(since) >= h.after }
	if !quiet(time.Unix(0, h.sign.Load())) {
		h.said = false
		return false
	}
	if h.said || !quiet(h.saved()) {
		return false
	}
	h.said = true
	return true
}

// why says in words why the command counts as hanging.
func (h *hangWatch) why() string {
	return fmt.Sprintf("no output, no GPU work and no new checkpoint for %s", exits.Lasting(h.after.Seconds()))
}

// heard is a writer that calls note at each write, and passes the output on to log unless
// log is nil.
type heard struct {
	log  io.Writer
	note func()
}

func (h heard) Write(p []byte) (int, error) {
	h.note()
	if h.log == nil {
		return len(p), nil
	}
	return h.log.Write(p)
}
