//go:build cuda

package nvml

import (
	"fmt"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// events is an NVML event set and the GPUs in it. An event names its GPU by a handle,
// and the GPU may no longer answer when the event is read, so its index and UUID are
// kept here.
type events struct {
	set nvml.EventSet
	of  map[nvml.Device]Xid // what is known of each GPU's events in advance: every field except Code and Time
}

func openXids() (source, error) {
	if err := start(); err != nil {
		return nil, err
	}
	n, ret := nvml.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, &UnavailableError{refused("count GPUs", ret).Error()}
	}
	set, ret := nvml.EventSetCreate()
	if ret != nvml.SUCCESS {
		return nil, &UnavailableError{refused("make an event set", ret).Error()}
	}
	e := &events{set: set, of: map[nvml.Device]Xid{}}
	for i := range n {
		e.register(i)
	}
	if len(e.of) == 0 {
		e.close()
		return nil, &UnavailableError{fmt.Sprintf("none of %d GPUs reports Xid events", n)}
	}
	return e, nil
}

// register adds the GPU with the given index to the set, if that GPU reports Xid
// events.
func (e *events) register(index int) {
	d, ret := nvml.DeviceGetHandleByIndex(index)
	if ret != nvml.SUCCESS || d.RegisterEvents(nvml.EventTypeXidCriticalError, e.set) != nvml.SUCCESS {
		return
	}
	e.of[d] = Xid{GPU: index, UUID: ask("", d.GetUUID)}
}

func (e *events) wait(d time.Duration) (Xid, bool, error) {
	data, ret := e.set.Wait(uint32(d.Milliseconds()))
	switch {
	case ret == nvml.ERROR_TIMEOUT:
		return Xid{}, false, nil
	case ret != nvml.SUCCESS:
		return Xid{}, false, refused("wait for Xid events", ret)
	case data.EventType != nvml.EventTypeXidCriticalError:
		return Xid{}, false, nil
	}
	x, ok := e.of[data.Device]
	if !ok {
		x.GPU = Unknown
	}
	x.Time, x.Code = time.Now(), int(data.EventData)
	return x, true, nil
}

// close frees the event set. It ignores an error from NVML: nobody could act on it,
// and the set ends with the process.
func (e *events) close() { _ = e.set.Free() }
