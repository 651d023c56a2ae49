#include "common.cuh"

// Attention in float is computed for a chunk at a time: some (sample, head) pairs, and of
// each of them R query positions from r0 on. The chunk's scores are a matrix
// pairs×R×N with N = r0+R, the keys that its last query may see. Matrix products
// are cuBLAS's; between them run the kernels of this file. A chunk is small
// enough to stay in the L2 cache, and keys that no query of a chunk may see cost
// nothing.

// Addresses of the chunk's matrices, for cuBLAS's batched product: queries from
// r0, all keys and values of qkv, B×T×3×H×D; rows from r0 of out, B×T×H×D; the
// scores and the other matrix of their size. Called once more with the
// gradients' addresses for the backward pass.
extern "C" __global__ void attention_addresses(uint64 *q, uint64 *k, uint64 *v, uint64 *out, uint64 *scores, uint64 *other,
                                               uint64 qkv_at, uint64 out_at, uint64 scores_at, uint64 other_at, int first,
                                               int pairs, int T, int H, int D, int r0, int R) {
  GRID_STRIDE(p, pairs) {
    long long b = (first + p) / H, h = (first + p) % H;
    uint64 matrix = (uint64)R * (r0 + R) * sizeof(float);
    uint64 row = qkv_at + sizeof(float) * (uint64)(b * T * 3 * H * D + h * D);
    q[p] = row + sizeof(float) * (uint64)r0 * 3 * H * D;
    k[p] = row + sizeof(float) * (uint64)(H * D);
    v[p] = row + sizeof(float) * (uint64)(2 * H * D);
    out[p] = out_at + sizeof(float) * (uint64)((b * T + r0) * H * D + h * D);
    scores[p] = scores_at + matrix * p;
    other[p] = other_at + matrix * p;
  }
}

// Rows of scores become probabilities over the keys up to their own position,
// the rest becomes 0; lse[pair, t] = log Σ exp. One warp a row.
extern "C" __global__ void causal_softmax(float *scores, float *lse, int pairs, int first, int T, int r0, int R) {
  int r = blockIdx.x * blockDim.y + threadIdx.y;
  if (r >= pairs * R) return;
  int N = r0 + R, t = r0 + r % R;
  float *row = scores + (long long)r * N;
  float top = -INFINITY;
  for (int c = threadIdx.x; c <= t; c += WARP) top = fmaxf(top, row[c]);
  top = warp_max(top);
  float sum = 0.f;
  for (int c = threadIdx.x; c <= t; c += WARP) {
    float e = expf(row[c] - top);
    row[c] = e;
    sum += e;
  }
  sum = warp_sum(sum);
  float scale = 1.f / sum;
  for (int c = threadIdx.x; c < N; c += WARP) row[c] = c <= t ? row[c] * scale : 0.f;
  if (threadIdx.x == 0) lse[(long long)(first + r / R) * T + t] = top + logf(sum);
}

// delta[b, h, t] = Σ_d dout·out. One warp a row.
template <typename O>
__device__ inline void delta_row(float *delta, const O *dout, const O *out, int rows, int T, int H, int D) {
  int r = blockIdx.x * blockDim.y + threadIdx.y;
  if (r >= rows) return;
  int t = r % T, pair = r / T, h = pair % H, b = pair / H;
  long long at = (((long long)b * T + t) * H + h) * D;
  float sum = 0.f;
  for (int d = threadIdx.x; d < D; d += WARP) sum += get(dout, at + d) * get(out, at + d);
  sum = warp_sum(sum);
  if (threadIdx.x == 0) delta[r] = sum;
}

#define DELTA(type, O)                                                                                                \
  extern "C" __global__ void attention_delta_##type(float *delta, const O *dout, const O *out, int rows, int T, int H, \
                                                    int D) {                                                          \
    delta_row(delta, dout, out, rows, T, H, D);                                                                       \
  }
EACH_TYPE(DELTA)

// From scores s and the products dout·vᵀ, in place: probabilities p = exp(s−lse)
// and the gradient of the scores, scale·p·(dp−delta). One warp a row.
extern "C" __global__ void causal_softmax_grad(float *scores, float *products, const float *lse, const float *delta, int pairs,
                                               int first, int T, int r0, int R, float scale) {
  int r = blockIdx.x * blockDim.y + threadIdx.y;
  if (r >= pairs * R) return;
  int N = r0 + R, t = r0 + r % R;
  float *row = scores + (long long)r * N, *other = products + (long long)r * N;
  long long at = (long long)(first + r / R) * T + t;
  float l = lse[at], d = delta[at];
  for (int c = threadIdx.x; c < N; c += WARP) {
    float p = c <= t ? expf(row[c] - l) : 0.f;
    row[c] = p;
    other[c] = c <= t ? scale * p * (other[c] - d) : 0.f;
  }
}
