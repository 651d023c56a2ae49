#include "common.cuh"

// Kernels over whole tensors move four elements at a time where every address
// allows it (quads > 0), and the rest one by one. NAME_at does the W elements from
// W·i on.

// fill and add are what state is kept with: like the optimizers they write
// nothing after an operation met an index outside its table.

extern "C" __global__ void fill(float *x, float v, long long n, const int *fault) {
  if (*fault != 0) return;
  GRID_STRIDE(i, n) x[i] = v;
}

template <int W, typename Y, typename X>
__device__ inline void add_at(Y *y, const X *x, long long i) {
  float a[W], b[W];
  wide<W>::load(a, y, i);
  wide<W>::load(b, x, i);
#pragma unroll
  for (int j = 0; j < W; j++) a[j] += b[j];
  wide<W>::store(y, i, a);
}

#define ADD(types, Y, X)                                                                                             \
  extern "C" __global__ void add_##types(Y *y, const X *x, long long quads, long long n, const int *fault) {          \
    if (*fault != 0) return;                                                                                         \
    GRID_STRIDE(i, quads) add_at<4>(y, x, i);                                                                        \
    GRID_STRIDE(i, n - 4 * quads) add_at<1>(y, x, 4 * quads + i);                                                    \
  }
EACH_PAIR(ADD)

template <int W, typename Y, typename X>
__device__ inline void copy_at(Y *y, const X *x, long long i) {
  float a[W];
  wide<W>::load(a, x, i);
  wide<W>::store(y, i, a);
}

// copy is for tensors of two types.
#define COPY(types, Y, X)                                                                          \
  extern "C" __global__ void copy_##types(Y *y, const X *x, long long quads, long long n) {        \
    GRID_STRIDE(i, quads) copy_at<4>(y, x, i);                                                     \
    GRID_STRIDE(i, n - 4 * quads) copy_at<1>(y, x, 4 * quads + i);                                 \
  }
COPY(fb, float, bf16)
COPY(bf, bf16, float)

#define GELU_SCALE 0.7978845608028654f  // √(2/π)
#define GELU_CUBE 0.044715f

__device__ inline float gelu_of(float x) {
  return 0.5f * x * (1.f + tanhf(GELU_SCALE * (x + GELU_CUBE * x * x * x)));
}

__device__ inline float gelu_slope(float x) {
  float t = tanhf(GELU_SCALE * (x + GELU_CUBE * x * x * x));
  return 0.5f * (1.f + t) + 0.5f * x * (1.f - t * t) * GELU_SCALE * (1.f + 3.f * GELU_CUBE * x * x);
}

template <int W, typename T>
__device__ inline void gelu_at(T *y, const T *x, long long i) {
  float a[W];
  wide<W>::load(a, x, i);
#pragma unroll
  for (int j = 0; j < W; j++) a[j] = gelu_of(a[j]);
  wide<W>::store(y, i, a);
}

template <int W, typename T>
__device__ inline void gelu_grad_at(T *dx, const T *x, const T *dy, long long i) {
  float a[W], g[W];
  wide<W>::load(a, x, i);
  wide<W>::load(g, dy, i);
#pragma unroll
  for (int j = 0; j < W; j++) a[j] = g[j] * gelu_slope(a[j]);
  wide<W>::store(dx, i, a);
}

#define GELU(type, T)                                                                                             \
  extern "C" __global__ void gelu_##type(T *y, const T *x, long long quads, long long n) {                        \
    GRID_STRIDE(i, quads) gelu_at<4>(y, x, i);                                                                    \
    GRID_STRIDE(i, n - 4 * quads) gelu_at<1>(y, x, 4 * quads + i);                                                \
  }                                                                                                               \
  extern "C" __global__ void gelu_grad_##type(T *dx, const T *x, const T *dy, long long quads, long long n) {     \
    GRID_STRIDE(i, quads) gelu_grad_at<4>(dx, x, dy, i);                                                          \
    GRID_STRIDE(i, n - 4 * quads) gelu_grad_at<1>(dx, x, dy, 4 * quads + i);                                      \
  }
EACH_TYPE(GELU)

// A thread keeps the bias of its W columns and goes down the rows.
template <int W, typename T>
__device__ inline void add_bias_down(T *x, const float *b, int rows, int across) {
  int c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c >= across) return;
  float v[W], a[W];
  wide<W>::load(v, b, c);
  for (int r = blockIdx.y; r < rows; r += gridDim.y) {
    long long at = (long long)r * across + c;
    wide<W>::load(a, x, at);
#pragma unroll
    for (int j = 0; j < W; j++) a[j] += v[j];
    wide<W>::store(x, at, a);
  }
}

// across is how many groups of W columns there are.
#define ADD_BIAS(type, T)                                                                            \
  extern "C" __global__ void add_bias_##type(T *x, const float *b, int rows, int across, int W) {    \
    if (W == 4)                                                                                      \
      add_bias_down<4>(x, b, rows, across);                                                          \
    else                                                                                             \
      add_bias_down<1>(x, b, rows, across);                                                          \
  }
EACH_TYPE(ADD_BIAS)

// Philox4x32-10, Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011.
__device__ inline uint4 philox(uint4 c, uint32 k0, uint32 k1) {
#pragma unroll
  for (int round = 0; round < 10; round++) {
    uint32 lo0 = 0xD2511F53u * c.x, hi0 = __umulhi(0xD2511F53u, c.x);
    uint32 lo1 = 0xCD9E8D57u * c.z, hi1 = __umulhi(0xCD9E8D57u, c.z);
    c = make_uint4(hi1 ^ c.y ^ k0, lo1, hi0 ^ c.w ^ k1, lo0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

template <int W, typename Y, typename X>
__device__ inline void dropout_at(Y *y, const X *x, long long i, const uint32 *words, uint32 threshold, float scale) {
  float a[W];
  wide<W>::load(a, x, i);
#pragma unroll
  for (int j = 0; j < W; j++) a[j] = words[j] >= threshold ? a[j] * scale : 0.f;
  wide<W>::store(y, i, a);
}

// One thread draws the four words that decide over four neighbouring elements of
// one sample; blockIdx.y walks the samples. Samples begin at a multiple of four
// elements where quads is set.
template <typename Y, typename X>
__device__ inline void drop(Y *y, const X *x, const int *samples, int count, long long each, uint64 seed, uint32 step,
                            uint32 site, uint32 threshold, float scale, int quads) {
  for (int sample = blockIdx.y; sample < count; sample += gridDim.y) {
    Y *to = y + sample * each;
    const X *from = x + sample * each;
    uint32 number = (uint32)samples[sample];
    GRID_STRIDE(block, (each + 3) / 4) {
      uint4 w = philox(make_uint4((uint32)block, number, site, step), (uint32)seed, (uint32)(seed >> 32));
      uint32 words[4] = {w.x, w.y, w.z, w.w};
      if (quads)
        dropout_at<4>(to, from, block, words, threshold, scale);
      else
        for (int j = 0; j < 4 && 4 * block + j < each; j++) dropout_at<1>(to, from, 4 * block + j, words + j, threshold, scale);
    }
  }
}

#define DROPOUT(types, Y, X)                                                                                              \
  extern "C" __global__ void dropout_##types(Y *y, const X *x, const int *samples, int count, long long each, uint64 seed, \
                                             uint32 step, uint32 site, uint32 threshold, float scale, int quads) {         \
    drop(y, x, samples, count, each, seed, step, site, threshold, scale, quads);                                           \
  }
EACH_PAIR(DROPOUT)
