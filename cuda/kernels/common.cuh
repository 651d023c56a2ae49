// What the kernels share. Everything is deterministic: no floating-point atomics,
// every reduction in one fixed order, so the same inputs give the same bits.
#pragma once

typedef unsigned int uint32;
typedef unsigned long long uint64;

#define WARP 32
#define ALL 0xffffffffu

// NVRTC has no math.h.
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif

// Each thread of a kernel over n elements walks the grid.
#define GRID_STRIDE(i, n) \
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < (n); i += (long long)gridDim.x * blockDim.x)

__device__ inline float warp_sum(float v) {
#pragma unroll
  for (int d = WARP / 2; d > 0; d /= 2) v += __shfl_xor_sync(ALL, v, d);
  return v;
}

__device__ inline float warp_max(float v) {
#pragma unroll
  for (int d = WARP / 2; d > 0; d /= 2) v = fmaxf(v, __shfl_xor_sync(ALL, v, d));
  return v;
}

// Sum over a block of at most 1024 threads, a multiple of 32; every thread gets
// it. shared holds 32 floats and may be used again after the call.
__device__ inline float block_sum(float v, float *shared) {
  v = warp_sum(v);
  if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = v;
  __syncthreads();
  v = threadIdx.x % WARP < blockDim.x / WARP ? shared[threadIdx.x % WARP] : 0.f;
  v = warp_sum(v);
  __syncthreads();
  return v;
}

__device__ inline float block_max(float v, float *shared) {
  v = warp_max(v);
  if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = v;
  __syncthreads();
  v = threadIdx.x % WARP < blockDim.x / WARP ? shared[threadIdx.x % WARP] : -INFINITY;
  v = warp_max(v);
  __syncthreads();
  return v;
}
