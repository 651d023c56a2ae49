#include "common.cuh"

// One warp a row; a block is 32 × 8 threads, eight rows.

extern "C" __global__ void layernorm(float *out, float *mean, float *rstd, const float *x, const float *gamma,
                                     const float *beta, int rows, int cols, float eps) {
  int r = blockIdx.x * blockDim.y + threadIdx.y;
  if (r >= rows) return;
  const float *in = x + (long long)r * cols;
  float sum = 0.f;
  for (int c = threadIdx.x; c < cols; c += WARP) sum += in[c];
  float m = warp_sum(sum) / cols;
  // A second pass over the row, which is in the cache, keeps the variance of
  // rows far from zero accurate.
  float squares = 0.f;
  for (int c = threadIdx.x; c < cols; c += WARP) squares += (in[c] - m) * (in[c] - m);
  float s = rsqrtf(warp_sum(squares) / cols + eps);
  s = s * (1.5f - 0.5f * (warp_sum(squares) / cols + eps) * s * s);  // one Newton step: rsqrtf has 2 ulp
  for (int c = threadIdx.x; c < cols; c += WARP) out[(long long)r * cols + c] = (in[c] - m) * s * gamma[c] + beta[c];
  if (threadIdx.x == 0) {
    mean[r] = m;
    rstd[r] = s;
  }
}

// dx = rstd · (g − mean(g) − x̂ · mean(g·x̂)) with g = dy·gamma, x̂ = (x − mean)·rstd.
extern "C" __global__ void layernorm_dx(float *dx, const float *dy, const float *x, const float *gamma, const float *mean,
                                        const float *rstd, int rows, int cols) {
  int r = blockIdx.x * blockDim.y + threadIdx.y;
  if (r >= rows) return;
  long long at = (long long)r * cols;
  float m = mean[r], s = rstd[r], g_sum = 0.f, gx_sum = 0.f;
  for (int c = threadIdx.x; c < cols; c += WARP) {
    float g = dy[at + c] * gamma[c];
    g_sum += g;
    gx_sum += g * ((x[at + c] - m) * s);
  }
  g_sum = warp_sum(g_sum) / cols;
  gx_sum = warp_sum(gx_sum) / cols;
  for (int c = threadIdx.x; c < cols; c += WARP) {
    float xhat = (x[at + c] - m) * s;
    dx[at + c] = s * (dy[at + c] * gamma[c] - g_sum - xhat * gx_sum);
  }
}

// Pieces of dgamma and dbeta, laid out as column_sums leaves its own: gamma's
// pieces first, then beta's. It must run before layernorm_dx if dx is dy.
extern "C" __global__ void layernorm_pieces(float *dgamma, float *dbeta, const float *dy, const float *x, const float *mean,
                                            const float *rstd, int rows, int cols, int rows_a_piece) {
  __shared__ float tile_gamma[8][WARP + 1], tile_beta[8][WARP + 1];
  int c = blockIdx.x * WARP + threadIdx.x;
  int from = blockIdx.y * rows_a_piece, to = min(rows, from + rows_a_piece);
  float g = 0.f, b = 0.f;
  if (c < cols)
    for (int r = from + threadIdx.y; r < to; r += 8) {
      float d = dy[(long long)r * cols + c];
      g += d * ((x[(long long)r * cols + c] - mean[r]) * rstd[r]);
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
