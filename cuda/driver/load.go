//go:build cuda

package driver

/*
#cgo LDFLAGS: -ldl
#include "table.h"
#include <stdlib.h>
*/
import "C"

import (
	"fmt"
	"sync"
	"unsafe"
)

// Built reports whether the program was built with GPU support.
const Built = true

// Library is the file name under which every NVIDIA driver installs its library.
const Library = "libcuda.so.1"

var load = sync.OnceValue(func() error {
	path := C.CString(Library)
	defer C.free(unsafe.Pointer(path))
	var why *C.char
	switch result := C.headroom_driver_load(path, &why); result {
	case 0:
		return nil
	case -1:
		return &UnavailableError{Reason: C.GoString(why)}
	default:
		return &UnavailableError{Reason: explain(int(result)), Result: int(result)}
	}
})

// Load connects the program to the driver. It does so once; later calls return
// the same result. An error is an *[UnavailableError]. Load is safe for
// concurrent use.
func Load() error { return load() }

func explain(result int) string {
	switch result {
	case 100:
		return "the driver sees no GPU (CUDA_ERROR_NO_DEVICE)"
	case 803:
		return "the driver's kernel module and library differ in version (CUDA_ERROR_SYSTEM_DRIVER_MISMATCH); restart the machine or reinstall the driver"
	case 999:
		return "the driver could not start (CUDA_ERROR_UNKNOWN); check that /dev/nvidia* exist and may be read"
	}
	return fmt.Sprintf("cuInit returned CUresult %d", result)
}
