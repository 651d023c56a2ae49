// Package nvml sees GPUs from outside, through NVIDIA's management library: who
// holds their memory, what state they are in, and the faults that the driver
// reports. It opens no device and makes no CUDA context.
//
// Start with [GPUs] and [Watch]. The library is looked for when it is first
// needed; without it, and without the build tag cuda, every call returns an
// [UnavailableError], and a program can continue without it.
package nvml
