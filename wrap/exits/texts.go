package exits

import (
	"bytes"
	"slices"
	"strings"
	"sync"
)

// meaning is what a known message in the output says about why a command ended.
type meaning int

const (
	nothing      meaning = iota
	deviceMemory         // an allocation on the device failed
	ifLittleFree         // a library's error that may be caused by a lack of device memory, or by something else
	ifLimited            // a library's error that may be caused by a lack of host memory, or by something else
	hostMemory           // an allocation of host memory failed
	sharedMemory         // /dev/shm was full
	deviceGone           // the process can no longer use the device
	oversize             // an index or a kernel launch was too large, which has nothing to do with memory
	lookalike            // mentions memory or a device, but is about something else
	cascade              // printed by other processes after one has failed
	confirmation         // the kernel or a scheduler says that it killed a process for lack of memory
	workerKilled         // a process of the command was killed by SIGKILL, according to its parent
)

// memory reports whether m means that memory certainly ran out.
func (m meaning) memory() bool {
	return m == deviceMemory || m == hostMemory || m == sharedMemory
}

// signature is a text that frameworks, libraries or the kernel print.
type signature struct {
	text string // in lower case; " * " matches any text, and at most one is allowed
	what string // what the text means, in a few words; may be "" if the meaning says enough
}

// family is a set of signatures with the same meaning.
type family struct {
	meaning    meaning
	signatures []signature
}

// families holds every known text. The first family that has a match counts, so families
// with more specific texts come before those with more general ones.
var families = []family{
	{lookalike, lookalikes},
	{sharedMemory, sharedMemoryTexts},
	{confirmation, confirmations},
	{workerKilled, workerKills},
	{deviceMemory, rmmTexts},
	{hostMemory, hostMemoryTexts},
	{deviceMemory, deviceMemoryTexts},
	{deviceGone, deviceGoneTexts},
	{oversize, oversizeTexts},
	{cascade, cascadeTexts},
	{ifLittleFree, ambiguousTexts},
	{ifLimited, ambiguousHostTexts},
}

// memoryPhrases returns the longest fixed piece of each text about memory.
var memoryPhrases = sync.OnceValue(func() []string {
	phrases := []string{"memoryerror"} // exceptions with such a name may have any text
	for _, f := range families {
		for _, s := range f.signatures {
			if f.meaning.memory() {
				phrases = append(phrases, slices.MaxFunc(strings.Split(s.text, " * "), func(a, b string) int { return len(a) - len(b) }))
			}
		}
	}
	return phrases
})

// mayTellOfMemory reports whether the output may contain a message about memory. Colours
// and frames may split such a message, so it returns true for any output that has them.
func mayTellOfMemory(output []byte) bool {
	if bytes.IndexByte(output, '\x1b') >= 0 || bytes.Contains(output, []byte("│")) {
		return true
	}
	lower := bytes.ToLower(output)
	return slices.ContainsFunc(memoryPhrases(), func(phrase string) bool { return bytes.Contains(lower, []byte(phrase)) })
}

// shortest is the length of the shortest signature. Output may have millions of empty lines,
// which are skipped because they are shorter.
const shortest = len("eoferror")

// textMatch is a signature found in a text, with its position.
type textMatch struct {
	signature
	meaning meaning
	at, end int
}

// meaningOf returns the first known signature in a text, with its meaning. It returns the
// zero value if there is none.
func meaningOf(text string) textMatch {
	if len(text) < shortest {
		return textMatch{}
	}
	lower := oneLine(strings.ToLower(text)) // Rich breaks lines anywhere
	for _, f := range families {
		for _, s := range f.signatures {
			if at, end, ok := s.find(lower); ok {
				return textMatch{s, f.meaning, at, end}
			}
		}
	}
	return textMatch{}
}

// oneLine returns text with its line breaks replaced by spaces. Positions stay the same.
func oneLine(text string) string { return strings.ReplaceAll(text, "\n", " ") }

func (s signature) find(lower string) (at, end int, ok bool) {
	head, rest, wild := strings.Cut(s.text, " * ")
	at = strings.Index(lower, head)
	if at < 0 {
		return 0, 0, false
	}
	end = at + len(head)
	if !wild {
		return at, end, true
	}
	next := strings.Index(lower[end:], rest)
	return at, end + next + len(rest), next >= 0
}

// deviceMemoryTypes are exceptions that mean a lack of device memory, whatever their
// messages say. hostMemoryTypes are those that mean a lack of host memory.
var (
	deviceMemoryTypes = []string{
		"torch.OutOfMemoryError", "torch.cuda.OutOfMemoryError", "OutOfMemoryError", "torch._C.OutOfMemoryError",
		"torch.cuda.memory.OutOfMemoryError", "torch.xpu.OutOfMemoryError", "cupy.cuda.memory.OutOfMemoryError",
		"cupy_backends.cuda.api.runtime.OutOfMemoryError", "torch.mps.OutOfMemoryError",
	}
	hostMemoryTypes = []string{
		"MemoryError", "numpy.core._exceptions.MemoryError", "numpy.core._exceptions._ArrayMemoryError",
		"numpy._core._exceptions._ArrayMemoryError", "numpy._core._exceptions._UFuncMemoryError",
		"ray.exceptions.OutOfMemoryError", "pyarrow.lib.ArrowMemoryError",
	}
)

var deviceMemoryTexts = []signature{
	{"cuda out of memory. tried to allocate", ""},
	{"hip out of memory. tried to allocate", ""},
	{"xpu out of memory. tried to allocate", ""},
	{"npu out of memory. tried to allocate", ""},
	{"cuda out of memory", ""},
	{"hip out of memory", ""},
	{"xpu out of memory", ""},
	{"npu out of memory", ""},
	{"mps backend out of memory", ""},
	{"invalid buffer size:", "a buffer larger than Metal allows"},
	{"kiogpucommandbuffercallbackerroroutofmemory", "Metal ran out of memory"},
	{"would exceed allowed memory. (out of memory)", "cudaMallocAsync reached its limit"},
	{"cuda error: out of memory", ""},
	{"cuda driver error: out of memory", ""},
	{"cuda runtime error (2) : out of memory", ""},
	{"cuda error: cuda_error_out_of_memory", ""},
	{"cuda_error_out_of_memory", ""},
	{"cudaerrormemoryallocation", ""},
	{"hip error: out of memory", ""},
	{"hiperroroutofmemory", ""},
	{"ur_result_error_out_of_device_memory", ""},
	{"pt_devmem allocation failed", "Habana's allocator ran out of memory"},
	{"cublas_status_alloc_failed", "cuBLAS could not allocate"},
	{"cudnn_status_alloc_failed", "cuDNN could not allocate"},
	{"cusolver_status_alloc_failed", "cuSOLVER could not allocate"},
	{"cusparse_status_alloc_failed", "cuSPARSE could not allocate"},
	{"cufft_alloc_failed", "cuFFT could not allocate"},
	{"cuda failure 'out of memory'", "NCCL could not allocate"},
	{"cuda failure 2 'out of memory'", "NCCL could not allocate"},
	{"failed to cuda calloc", "NCCL could not allocate"},
	{"resource_exhausted: out of memory", ""},
	{"resource_exhausted: failed to allocate request for", ""},
	{"resource_exhausted: attempting to reserve * at the bottom of memory", ""},
	{"resource_exhausted: attempting to allocate", ""},
	{"ran out of memory in memory space hbm", "the compiled program needs more than the TPU has"},
	{"oom when allocating tensor", ""},
	{"out of memory error on gpu", "Paddle's allocator ran out of memory"},
	{"cudamalloc retry failed: out of memory", ""},
	{"cudamalloc failed: out of memory", ""},
	{"error out of memory at line", "bitsandbytes could not allocate"},
	{"memory allocation failed with oom on device", "PyTorch's allocator ran out of memory"},
	{"no executable batch size found, reached zero", "every batch size down to one was tried inside the command"},
	{"no available memory for the cache blocks", "vLLM had no memory for its cache"},
	{"free memory on device * is less than desired gpu memory", "vLLM found less memory free than it was told to take"},
}

// rmmTexts are texts of RMM, the RAPIDS Memory Manager, that mean a lack of device
// memory. A message with such a text may also contain one of hostMemoryTexts.
var rmmTexts = []signature{
	{"std::bad_alloc: out_of_memory: cuda error", "RMM ran out of device memory"},
}

var hostMemoryTexts = []signature{
	{"defaultcpuallocator: can't allocate memory", ""},
	{"defaultcpuallocator: not enough memory", ""},
	{"task was killed due to the node running low on memory", "Ray killed it because the machine ran low on memory"},
	{"[errno 12] cannot allocate memory", "the kernel refused an allocation"},
	{"cannot allocate memory (12)", "the kernel refused an allocation"},
	{"terminate called after throwing an instance of 'std::bad_alloc'", ""},
	{"memoryerror: std::bad_alloc", ""},
	{"runtimeerror: std::bad_alloc", ""},
	{"posix_memalign(&data, galignment, nbytes) == 0. 12 vs 0", "PyTorch's allocator for the CPU ran out of memory"},
	{"memory allocation of * bytes failed", "Rust's allocator ran out of memory"},
	{"fatal error: runtime: out of memory", "Go's runtime ran out of memory"},
	{"fatal: out of memory, malloc failed", ""},
	{"oom when allocating tensor * by allocator cpu", "TensorFlow's host-memory allocator ran out of memory"},
	{"oom when allocating tensor * by allocator mklcpu", "TensorFlow's host-memory allocator ran out of memory"},
}

var sharedMemoryTexts = []signature{
	{"bus error. it is possible that dataloader's workers are out of shared memory", ""},
	{"unable to write to file </torch_ * no space left on device", ""},
	{"unable to allocate shared memory(shm) for file", ""},
	{"error while creating shared memory segment", "NCCL's shared-memory segment did not fit"},
	{"no space left on device: '/dev/shm", ""},
	{"unable to resize file </torch_ * no space left on device", ""},
}

var deviceGoneTexts = []signature{
	{"an illegal memory access was encountered", "an illegal memory access killed the context; 32-bit indices that overflow on large tensors can cause it too"},
	{"cuda_error_illegal_address", "an illegal memory access killed the context"},
	{"hiperrorillegaladdress", "an illegal memory access killed the context"},
	{"illegal memory access", "an illegal memory access killed the context"},
	{"memory access fault by gpu node", "an illegal memory access killed the context"},
	{"unspecified launch failure", "a kernel crashed"},
	{"cuda error: misaligned address", "a kernel crashed"},
	{"uncorrectable ecc error", "the device's memory has a fault"},
	{"gpu has fallen off the bus", "the device does not respond"},
	{"gpu is lost", "the device does not respond"},
	{"the launch timed out and was terminated", "a kernel was ended by the driver's time limit"},
	{"cuda error: hardware stack error", "a kernel crashed"},
	{"cuda_error_ecc_uncorrectable", "the device's memory has a fault"},
}

var oversizeTexts = []signature{
	{"invalid configuration argument", "a kernel was launched with more blocks than are allowed"},
	{"tensors with more than int_max elements", "an operator uses 32-bit indices"},
	{"integer out of range: * int_max", "an operator uses 32-bit indices"},
	{"canuse32bitindexmath", "an operator uses 32-bit indices"},
	{"input tensor is too large", "an operator uses 32-bit indices"},
	{"tensor has more than 2^31", "an operator uses 32-bit indices"},
}
