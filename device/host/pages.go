package host

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"headroom/memory"
)

// mapPages takes n bytes from the operating system, outside Go's heap. The
// mapped memory is zero, and the system counts a page as used only once it is
// written.
func mapPages(n memory.Bytes) ([]byte, error) {
	mem, err := unix.Mmap(-1, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if errors.Is(err, unix.ENOMEM) {
		return nil, fmt.Errorf("map %v: %w: %w", n, err, &memory.OutOfMemoryError{Requested: n})
	}
	if err != nil {
		return nil, fmt.Errorf("map %v: %w", n, err)
	}
	return mem, nil
}

func unmapPages(mem []byte) error {
	if err := unix.Munmap(mem); err != nil {
		return fmt.Errorf("unmap %v: %w", memory.Bytes(len(mem)), err)
	}
	return nil
}
