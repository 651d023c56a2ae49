//go:build cuda

package nvml

/*
#cgo LDFLAGS: -ldl
#include "table.h"
#include <stdlib.h>
*/
import "C"

import (
	"sync"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// library is the file name under which every NVIDIA driver installs NVML.
const library = "libnvidia-ml.so.1"

// start opens NVML once and keeps it open; go-nvml then opens it a second time for
// itself. Without start, go-nvml would leave it to the dynamic linker to bind each
// NVML function when it is first called. A program that has all functions bound when
// it starts (LD_BIND_NOW, a hardened build) would then not start at all, and a
// program that calls a function missing from an older library would be killed.
var start = sync.OnceValue(func() error {
	path := C.CString(library)
	defer C.free(unsafe.Pointer(path))
	ret := nvml.ERROR_LIBRARY_NOT_FOUND
	if C.headroom_nvml_load(path) == 0 {
		ret = nvml.Init()
	}
	if ret != nvml.SUCCESS {
		return &UnavailableError{whyNot(ret)}
	}
	return nil
})

func whyNot(ret nvml.Return) string {
	switch ret {
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return library + " cannot be opened: no driver is installed, or the container was started without NVIDIA_DRIVER_CAPABILITIES=compute,utility"
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return "the driver's kernel module is not loaded"
	case nvml.ERROR_NO_PERMISSION:
		return "no permission; check that /dev/nvidia* may be read and written"
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return "the driver's kernel module and library differ in version; restart the machine or reinstall the driver"
	}
	return "it could not be started: " + ret.Error()
}
