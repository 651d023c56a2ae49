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
// before the GPU has made the copy. The halves take turns: one is filled while the
// other is being copied to the GPU. If there is no such memory, for example because
// the system refuses to lock more pages, uploads wait for the GPU.
type staging struct {
	halves [2]half
	now    int // the half being filled
	filled int // bytes of that half in use
}

type half struct {
	memory  unsafe.Pointer // stageBytes
	emptied cu.Event       // recorded after the last copy out of the half
	pending bool           // whether emptied was recorded
}

// open allocates the memory. If none is available, it leaves staging empty and
// returns nil.
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

// send queues a copy of src to dst after all earlier work. The caller may change
// src as soon as send has returned.
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

// turn switches to the other half, and waits until all copies out of that half
// are done.
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
