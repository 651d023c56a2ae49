#include "common.cuh"

// Kernels over whole tensors move four elements at a time where every address
// allows it (quads > 0), and the rest one by one.

// fill and add are what state is kept with: like the optimizers they write
// nothing after an operation met an index outside its table.

extern "C" __global__ void fill(float *x, float v, long long n, const int *fault) {
  if (*fault != 0) return;
  GRID_STRIDE(i, n) x[i] = v;
}

extern "C" __global__ void add(float *y, const float *x, long long quads, long long n, const int *fault) {
  if (*fault != 0) return;
  GRID_STRIDE(i, quads) {
    float4 a = ((const float4 *)x)[i], b = ((float4 *)y)[i];
    ((float4 *)y)[i] = make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
  }
  GRID_STRIDE(i, n - 4 * quads) y[4 * quads + i] += x[4 * quads + i];
}

#define GELU_SCALE 0.7978845608028654f  // √(2/π)
#define GELU_CUBE 0.044715f

__device__ inline float gelu_of(float x) {
  return 0.5f * x * (1.f + tanhf(GELU_SCALE * (x + GELU_CUBE * x * x * x)));
}

__device__ inline float gelu_slope(float x) {
  float t = tanhf(GELU_SCALE * (x + GELU_CUBE * x * x * x));
  return 0.5f * (1.f + t) + 0.5f * x * (1.f - t * t) * GELU_SCALE * (1.f + 3.f * GELU_CUBE * x * x);
}

extern "C" __global__ void gelu(float *y, const float *x, long long quads, long long n) {
  GRID_STRIDE(i, quads) {
    float4 a = ((const float4 *)x)[i];
    ((float4 *)y)[i] = make_float4(gelu_of(a.x), gelu_of(a.y), gelu_of(a.z), gelu_of(a.w));
  }
  GRID_STRIDE(i, n - 4 * quads) y[4 * quads + i] = gelu_of(x[4 * quads + i]);
}

extern "C" __global__ void gelu_grad(float *dx, const float *x, const float *dy, long long quads, long long n) {
  GRID_STRIDE(i, quads) {
    float4 a = ((const float4 *)x)[i], g = ((const float4 *)dy)[i];
    ((float4 *)dx)[i] =
        make_float4(g.x * gelu_slope(a.x), g.y * gelu_slope(a.y), g.z * gelu_slope(a.z), g.w * gelu_slope(a.w));
  }
  GRID_STRIDE(i, n - 4 * quads) dx[4 * quads + i] = dy[4 * quads + i] * gelu_slope(x[4 * quads + i]);
}

extern "C" __global__ void add_bias(float *x, const float *b, long long rows, int cols) {
  GRID_STRIDE(i, rows * cols) x[i] += b[i % cols];
}

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

// One thread draws the four words that decide over four neighbouring elements of
// one sample.
extern "C" __global__ void dropout(float *y, const float *x, const int *samples, int count, long long each, uint64 seed,
                                   uint32 step, uint32 site, uint32 threshold, float scale) {
  long long blocks = (each + 3) / 4;
  GRID_STRIDE(i, blocks * count) {
    long long sample = i / blocks, block = i % blocks;
    uint4 w = philox(make_uint4((uint32)block, (uint32)samples[sample], site, step), (uint32)seed, (uint32)(seed >> 32));
    uint32 words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
    for (int j = 0; j < 4; j++) {
      long long e = 4 * block + j;
      if (e < each) {
        long long at = sample * each + e;
        y[at] = words[j] >= threshold ? x[at] * scale : 0.f;
      }
    }
  }
}
