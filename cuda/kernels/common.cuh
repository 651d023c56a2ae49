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

// A bfloat16 is the upper half of a float. Kernels compute in float and round
// when they store; a kernel's name ends with the types of the operands that may
// be either, f or b each.
struct bf16 {
  unsigned short bits;
};

#define EACH_TYPE(KERNEL) KERNEL(f, float) KERNEL(b, bf16)
#define EACH_PAIR(KERNEL) KERNEL(ff, float, float) KERNEL(fb, float, bf16) KERNEL(bf, bf16, float) KERNEL(bb, bf16, bf16)

// Rounded to nearest, ties to even, in the low half of the word.
__device__ inline uint32 to_bf16(float v) {
  uint32 u = __float_as_uint(v);
  if ((u & 0x7fffffffu) > 0x7f800000u) return u >> 16 | 0x40u;  // a NaN stays one
  return (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
}

// W neighbours from element W·i on, W being 4 where every address allows it.
template <int W>
struct wide;

template <>
struct wide<1> {
  static __device__ inline void load(float *v, const float *x, long long i) { v[0] = x[i]; }
  static __device__ inline void load(float *v, const bf16 *x, long long i) { v[0] = __uint_as_float((uint32)x[i].bits << 16); }
  static __device__ inline void store(float *x, long long i, const float *v) { x[i] = v[0]; }
  static __device__ inline void store(bf16 *x, long long i, const float *v) { x[i].bits = to_bf16(v[0]); }
};

template <>
struct wide<4> {
  static __device__ inline void load(float *v, const float *x, long long i) {
    float4 a = ((const float4 *)x)[i];
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
  }
  static __device__ inline void load(float *v, const bf16 *x, long long i) {
    uint2 a = ((const uint2 *)x)[i];
    v[0] = __uint_as_float(a.x << 16), v[1] = __uint_as_float(a.x & 0xffff0000u);
    v[2] = __uint_as_float(a.y << 16), v[3] = __uint_as_float(a.y & 0xffff0000u);
  }
  static __device__ inline void store(float *x, long long i, const float *v) {
    ((float4 *)x)[i] = make_float4(v[0], v[1], v[2], v[3]);
  }
  static __device__ inline void store(bf16 *x, long long i, const float *v) {
    ((uint2 *)x)[i] = make_uint2(to_bf16(v[0]) | to_bf16(v[1]) << 16, to_bf16(v[2]) | to_bf16(v[3]) << 16);
  }
};

template <typename T>
__device__ inline float get(const T *x, long long i) {
  float v;
  wide<1>::load(&v, x, i);
  return v;
}

template <typename T>
__device__ inline void put(T *x, long long i, float v) {
  wide<1>::store(x, i, &v);
}

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
