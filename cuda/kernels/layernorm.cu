#include "common.cuh"

// One warp a row; a block is 32 × 8 threads, eight rows. across is how many
// groups of W elements a row has.

template <int W, typename O, typename X>
__device__ inline void layernorm_row(O *out, float *mean, float *rstd, const X *x, const float *gamma, const float *beta, int r,
                                     int across, float eps) {
  const X *in = x + (long long)r * across * W;
  float cols = across * W, v[W], sum = 0.f;
  for (int c = threadIdx.x; c < across; c += WARP) {
    wide<W>::load(v, in, c);
#pragma unroll
    for (int j = 0; j < W; j++) sum += v[j];
  }
  float m = warp_sum(sum) / cols;
  // A second pass over the row, which is in the cache, keeps the variance of
  // rows far from zero accurate.
  float squares = 0.f;
  for (int c = threadIdx.x; c < across; c += WARP) {
    wide<W>::load(v, in, c);
#pragma unroll
    for (int j = 0; j < W; j++) squares += (v[j] - m) * (v[j] - m);
  }
  float variance = warp_sum(squares) / cols + eps;
  float s = rsqrtf(variance);
  s = s * (1.5f - 0.5f * variance * s * s);  // one Newton step: rsqrtf has 2 ulp
  for (int c = threadIdx.x; c < across; c += WARP) {
    float g[W], b[W];
    wide<W>::load(v, in, c);
    wide<W>::load(g, gamma, c);
    wide<W>::load(b, beta, c);
#pragma unroll
    for (int j = 0; j < W; j++) v[j] = (v[j] - m) * s * g[j] + b[j];
    wide<W>::store(out + (long long)r * across * W, c, v);
  }
  if (threadIdx.x == 0) {
    mean[r] = m;
    rstd[r] = s;
  }
}

#define LAYERNORM(types, O, X)                                                                                              \
  extern "C" __global__ void layernorm_##types(O *out, float *mean, float *rstd, const X *x, const float *gamma,            \
                                               const float *beta, int rows, int across, int W, float eps) {                 \
    int r = blockIdx.x * blockDim.y + threadIdx.y;                                                                          \
    if (r >= rows) return;                                                                                                  \
    if (W == 4)                                                                                                             \
      layernorm_row<4>(out, mean, rstd, x, gamma, beta, r, across, eps);                                                    \
    else                                                                                                                    \
      layernorm_row<1>(out, mean, rstd, x, gamma, beta, r, across, eps);                                                    \
  }
EACH_PAIR(LAYERNORM)

// dx = rstd · (g − mean(g) − x̂ · mean(g·x̂)) with g = dy·gamma, x̂ = (x − mean)·rstd.
template <int W, typename D, typename X>
__device__ inline void layernorm_dx_row(D *dx, const D *dy, const X *x, const float *gamma, float m, float s, int r, int across) {
  long long at = (long long)r * across;
  float cols = across * W, g_sum = 0.f, gx_sum = 0.f, d[W], v[W], scale[W];
  for (int c = threadIdx.x; c < across; c += WARP) {
    wide<W>::load(d, dy, at + c);
    wide<W>::load(v, x, at + c);
    wide<W>::load(scale, gamma, c);
#pragma unroll
    for (int j = 0; j < W; j++) {
      float g = d[j] * scale[j];
      g_sum += g;
      gx_sum += g * ((v[j] - m) * s);
    }
  }
  g_sum = warp_sum(g_sum) / cols;
  gx_sum = warp_sum(gx_sum) / cols;
  for (int c = threadIdx.x; c < across; c += WARP) {
    wide<W>::load(d, dy, at + c);
    wide<W>::load(v, x, at + c);
    wide<W>::load(scale, gamma, c);
#pragma unroll
    for (int j = 0; j < W; j++) d[j] = s * (d[j] * scale[j] - g_sum - (v[j] - m) * s * gx_sum);
    wide<W>::store(dx, at + c, d);
  }
}

#define LAYERNORM_DX(types, D, X)                                                                                             \
  extern "C" __global__ void layernorm_dx_##types(D *dx, const D *dy, const X *x, const float *gamma, const float *mean,      \
                                                  const float *rstd, int rows, int across, int W) {                           \
    int r = blockIdx.x * blockDim.y + threadIdx.y;                                                                            \
    if (r >= rows) return;                                                                                                    \
    if (W == 4)                                                                                                               \
      layernorm_dx_row<4>(dx, dy, x, gamma, mean[r], rstd[r], r, across);                                                     \
    else                                                                                                                      \
      layernorm_dx_row<1>(dx, dy, x, gamma, mean[r], rstd[r], r, across);                                                     \
  }
EACH_PAIR(LAYERNORM_DX)

// Pieces of dgamma and dbeta, laid out as column_sums leaves its own: gamma's
// pieces first, then beta's. It must run before layernorm_dx if dx is dy.
template <typename D, typename X>
__device__ inline void layernorm_piece(float *dgamma, float *dbeta, const D *dy, const X *x, const float *mean,
                                       const float *rstd, int rows, int cols, int rows_a_piece) {
  __shared__ float tile_gamma[8][WARP + 1], tile_beta[8][WARP + 1];
  int c = blockIdx.x * WARP + threadIdx.x;
  int from = blockIdx.y * rows_a_piece, to = min(rows, from + rows_a_piece);
  float g = 0.f, b = 0.f;
  if (c < cols)
#pragma unroll 4
    for (int r = from + threadIdx.y; r < to; r += 8) {
      long long at = (long long)r * cols + c;
      float d = get(dy, at);
      g += d * ((get(x, at) - mean[r]) * rstd[r]);
      b += d;
    }
  tile_gamma[threadIdx.y][threadIdx.x] = g;
  tile_beta[threadIdx.y][threadIdx.x] = b;
  __syncthreads();
  if (threadIdx.y == 0 && c < cols) {
    for (int y = 1; y < 8; y++) {
      g += tile_gamma[y][threadIdx.x];
      b += tile_beta[y][threadIdx.x];
    }
    dgamma[(long long)blockIdx.y * cols + c] = g;
    dbeta[(long long)blockIdx.y * cols + c] = b;
  }
}

#define LAYERNORM_PIECES(types, D, X)                                                                                    \
  extern "C" __global__ void layernorm_pieces_##types(float *dgamma, float *dbeta, const D *dy, const X *x,              \
                                                      const float *mean, const float *rstd, int rows, int cols,          \
                                                      int rows_a_piece) {                                                \
    layernorm_piece(dgamma, dbeta, dy, x, mean, rstd, rows, cols, rows_a_piece);                                         \
  }
EACH_PAIR(LAYERNORM_PIECES)
