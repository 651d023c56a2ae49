// Package nvml observes GPUs from outside, through NVIDIA's management library (NVML):
// which processes hold their memory, what state they are in, and which faults the driver
// reports. It opens no device and creates no CUDA context.
//
// Start with [GPUs] and [Watch]. The library is opened when it is first needed. If it is
// missing, or if the program was built without the build tag cuda, every call returns an
// [UnavailableError], and the program can continue.
package nvml
