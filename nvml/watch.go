package nvml

import (
	"context"
	"fmt"
	"time"
)

// An Xid is a GPU error that the driver reports, whichever process caused it.
type Xid struct {
	Time time.Time `json:"time"` // when it was received
	GPU  int       `json:"gpu"`  // GPU.Index, or Unknown
	UUID string    `json:"uuid"`
	Code int       `json:"code"`
}

func (x Xid) String() string {
	text := fmt.Sprintf("Xid %d on GPU %d", x.Code, x.GPU)
	if x.GPU == Unknown {
		text = fmt.Sprintf("Xid %d on an unknown GPU", x.Code)
	}
	if meaning := xids[x.Code]; meaning != "" {
		text += ": " + meaning
	}
	return text
}

// xids maps error codes to their meanings. It holds those of NVIDIA's Xid codes that
// end a job or explain why one ended.
var xids = map[int]string{
	13:  "exception in a kernel, usually an illegal access",
	31:  "memory page fault: a kernel used an address that is not mapped",
	43:  "a kernel failed and its channel was stopped",
	45:  "work was cleaned up: the process was killed or had already failed",
	48:  "memory error that ECC could not correct",
	61:  "internal micro-controller breakpoint",
	62:  "internal micro-controller halted",
	63:  "a memory row or page was recorded for replacement",
	64:  "a memory row or page could not be recorded for replacement",
	74:  "NVLink error",
	79:  "the GPU has fallen off the bus",
	92:  "many memory errors that ECC corrected",
	94:  "contained memory error: only the processes that used the memory are affected",
	95:  "uncontained memory error: the GPU must be reset",
	109: "context switch timed out",
	119: "the GPU's system processor did not answer in time",
	120: "the GPU's system processor failed",
	140: "memory error that could not be recovered from",
}

// xidWait is how long one wait for events lasts, and therefore the longest that it
// may take to end a watch.
const xidWait = 100 * time.Millisecond

// source is where a watch gets its events. It is used by only one goroutine.
type source interface {
	// wait blocks until there is an event or d has passed. ok is true if there is an
	// event.
	wait(d time.Duration) (x Xid, ok bool, err error)
	close()
}

// Watch returns a channel on which it sends the Xid events of all GPUs from now on.
// The channel is closed within 0.1 s after ctx ends. It is also closed when NVML
// fails, which happens if it loses the GPUs. Any error is an *[UnavailableError],
// even if the only reason is that no GPU reports such events.
func Watch(ctx context.Context) (<-chan Xid, error) {
	s, err := openXids()
	if err != nil {
		return nil, err
	}
	return watch(ctx, s), nil
}

func watch(ctx context.Context, s source) <-chan Xid {
	events := make(chan Xid)
	go func() {
		defer close(events)
		defer s.close()
		for ctx.Err() == nil {
			x, ok, err := s.wait(xidWait)
			if err != nil {
				return
			}
			if !ok {
				continue
			}
			select {
			case events <- x:
			case <-ctx.Done():
				return
			}
		}
	}()
	return events
}
