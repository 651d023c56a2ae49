//go:build cuda

package cuda

/*
#include <cuda.h>
*/
import "C"

import (
	"unsafe"

	"gorgonia.org/cu"

	"headroom/memory"
)

// stageBytes is the size of each half of the staging memory. A micro-batch of tokens is
// far smaller.
const stageBytes = 4 * memory.MiB

// staging is page-locked host memory that uploads pass through, so that they return
// before the GPU has got to them. The halves take turns: one is filled while the
// other is on its way. Without it, for example when the system will lock no more
// pages, uploads wait.
type staging struct {
	halves [2]half
	now    int // the half being filled
	filled int // bytes of it
}

type half struct {
	memory  unsafe.Pointer // stageBytes
	emptied cu.Event       // after the last copy out of it
	pending bool           // whether emptied was recorded
}

// open allocates the memory. It is not an error if none is available.
func (s *staging) open() error {
	var p unsafe.Pointer
	if C.cuMemHostAlloc(&p, C.size_t(2*stageBytes), 0) != 0 {
		return nil
	}
	for i := range s.halves {
		s.halves[i].memory = unsafe.Add(p, i*int(stageBytes))
		var err error
		if s.halves[i].emptied, err = cu.MakeEvent(cu.DisableTiming); err != nil {
			return err
		}
	}
	return nil
}

func (s *staging) close() {
	if p := s.halves[0].memory; p != nil {
		_ = cu.MemFreeHost(p) // the context is released next, and this memory and the events with it
	}
	*s = staging{}
}

// send queues a copy of src to dst behind everything asked for before. It has its
// own copy of src by the time it returns.
func (s *staging) send(dst cu.DevicePtr, src []byte) error {
	if s.halves[0].memory == nil {
		return cu.MemcpyHtoD(dst, unsafe.Pointer(unsafe.SliceData(src)), int64(len(src)))
	}
	for len(src) > 0 {
		if s.filled == int(stageBytes) {
			if err := s.turn(); err != nil {
				return err
			}
		}
		at := unsafe.Add(s.halves[s.now].memory, s.filled)
		n := copy(unsafe.Slice((*byte)(at), int(stageBytes)-s.filled), src)
		if err := cu.MemcpyHtoDAsync(dst, at, int64(n), cu.Stream{}); err != nil {
			return err
		}
		s.filled += n
		src, dst = src[n:], dst+cu.DevicePtr(n)
	}
	return nil
}

// turn switches to filling the other half, once that is empty.
func (s *staging) turn() error {
	full := &s.halves[s.now]
	if err := full.emptied.Record(cu.Stream{}); err != nil {
		return err
	}
	full.pending = true
	s.now, s.filled = 1-s.now, 0
	if next := &s.halves[s.now]; next.pending {
		return next.emptied.Synchronize() //nolint:misspell // the name is cu's
	}
	return nil
}
