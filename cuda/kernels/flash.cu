#include "mma.cuh"

// Attention in bfloat16 without its matrix of scores, as in Dao et al.,
// FlashAttention, 2022, and Dao, FlashAttention-2, 2023. Every kernel takes
// blocks of ROWS positions of one sample and head; a block of four warps keeps
// one of them, 16 positions a warp, and walks over those that causality lets it
// meet. Products run on the tensor cores; scores, sums and statistics are float.
// The gradient makes two walks, one for keys and values and one for queries: the
// scores are computed once more, and nothing is added up by atomics.
//
// qkv and dqkv are B×T×3×H×D; out and dout B×T×H×D; lse and delta B×H×T. Kernels
// come for heads of at most 64 and 128 channels, P; channels from D to P are
// zeros. by8 tells that rows of D start at multiples of 16 bytes and fill them. The
// grid is B·H × ⌈T/ROWS⌉, those with most to walk over first; a block is 128
// threads; dynamic shared memory is as each kernel says. scale is 1/√D; exponents
// are to base 2.

#define ROWS 64
#define STAGES(P) ((P) == 64 ? 2 : 1)  // tiles of what is walked over: two where shared memory has room on every GPU
#define THREADS 128
#define LOG2E 1.4426950408889634f
#define LN2 0.6931471805599453f

// A matrix of T rows of D elements in global memory.
struct rows_of {
  const bf16 *at;
  long long stride;  // elements between the starts of rows
};

// What all kernels of a head need to know.
struct shape {
  int T, H, D;
  bool by8;
};

__device__ inline rows_of part_of(const bf16 *qkv, int pair, int part, shape s) {
  long long stride = 3LL * s.H * s.D;
  rows_of m = {qkv + (long long)(pair / s.H) * s.T * stride + (long long)(part * s.H + pair % s.H) * s.D, stride};
  return m;
}

__device__ inline rows_of head_of(const bf16 *out, int pair, shape s) {
  long long stride = (long long)s.H * s.D;
  rows_of m = {out + (long long)(pair / s.H) * s.T * stride + (long long)(pair % s.H) * s.D, stride};
  return m;
}

// Begins to copy rows [from, from+ROWS) of m to a tile; what is not there is
// zeros.
template <int P>
__device__ inline void fetch(bf16 *tile, rows_of m, int from, shape s) {
  if (s.by8) {
    const int pieces = P / 8;
#pragma unroll
    for (int i = threadIdx.x; i < ROWS * pieces; i += THREADS) {
      int r = i / pieces, c = i % pieces * 8;
      bool there = from + r < s.T && c < s.D;
      copy_later(tile + r * PITCH(P) + c, m.at + (there ? (from + r) * m.stride + c : 0), there);
    }
    return;
  }
#pragma unroll 1
  for (int i = threadIdx.x; i < ROWS * P; i += THREADS) {
    int r = i / P, c = i % P;
    bool there = from + r < s.T && c < s.D;
    tile[r * PITCH(P) + c].bits = there ? m.at[(from + r) * m.stride + c].bits : 0;
  }
}

// The fragments of 16 rows of a tile as the left factor of a product over D.
template <int P>
__device__ inline void left(uint32 (*a)[4], const bf16 *tile) {
  int lane = threadIdx.x % WARP;
#pragma unroll
  for (int k = 0; k < P / 16; k++) load_matrices(a[k], tile + (lane % 16) * PITCH(P) + 16 * k + lane / 16 * 8);
}

// c = a·tileᵀ: 16 rows by the ROWS rows of a tile, a sum over D.
template <int P>
__device__ inline void times_transposed(float (*c)[4], uint32 (*a)[4], const bf16 *tile) {
  int lane = threadIdx.x % WARP;
#pragma unroll
  for (int n = 0; n < ROWS / 8; n++) c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0.f;
#pragma unroll
  for (int k = 0; k < P / 16; k++)
#pragma unroll
    for (int n = 0; n < ROWS / 16; n++) {
      uint32 b[4];  // two tiles of eight columns, each of 16 rows
      load_matrices(b, tile + (16 * n + lane / 16 * 8 + lane % 8) * PITCH(P) + 16 * k + lane / 8 % 2 * 8);
      mma(c[2 * n], a[k], b);
      mma(c[2 * n + 1], a[k], b + 2);
    }
}

// c += p·tile: 16 rows by D columns, a sum over the ROWS rows of a tile; p are
// fragments of times_transposed, rounded.
template <int P>
__device__ inline void add_times(float (*c)[4], float (*p)[4], const bf16 *tile) {
  int lane = threadIdx.x % WARP;
#pragma unroll
  for (int k = 0; k < ROWS / 16; k++) {
    uint32 a[4] = {pack(p[2 * k][0], p[2 * k][1]), pack(p[2 * k][2], p[2 * k][3]), pack(p[2 * k + 1][0], p[2 * k + 1][1]),
                   pack(p[2 * k + 1][2], p[2 * k + 1][3])};
#pragma unroll
    for (int n = 0; n < P / 16; n++) {
      uint32 b[4];
      load_matrices_transposed(b, tile + (16 * k + lane % 16) * PITCH(P) + 16 * n + lane / 16 * 8);
      mma(c[2 * n], a, b);
      mma(c[2 * n + 1], a, b + 2);
    }
  }
}

// Writes 16 rows, times what scale has for the lane's two rows.
template <int P>
__device__ inline void write_rows(rows_of to, int from, float (*c)[4], const float *scale, shape s) {
  int lane = threadIdx.x % WARP;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    int r = from + lane / 4 + 8 * half;
    if (r >= s.T) return;
    bf16 *row = (bf16 *)to.at + r * to.stride;
#pragma unroll
    for (int n = 0; n < P / 8; n++) {
      int column = 8 * n + lane % 4 * 2;
      uint32 both = pack(c[n][2 * half] * scale[half], c[n][2 * half + 1] * scale[half]);
      if (s.by8) {
        if (column < s.D) *(uint32 *)(row + column) = both;
      } else {
        if (column < s.D) row[column].bits = (unsigned short)both;
        if (column + 1 < s.D) row[column + 1].bits = (unsigned short)(both >> 16);
      }
    }
  }
}

// Dynamic shared memory: 1 + 2·STAGES tiles.
template <int P>
__device__ inline void forward(bf16 *out, float *lse, const bf16 *qkv, shape s, float scale) {
  extern __shared__ __align__(16) bf16 tiles[];
  const int size = ROWS * PITCH(P);
  const float scale_log2 = scale * LOG2E;
  const int stages = STAGES(P), ahead = stages - 1;
  bf16 *queries = tiles, *keys = tiles + size, *values = keys + stages * size;
  int pair = blockIdx.x, block = gridDim.y - 1 - blockIdx.y, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  int first = block * ROWS + warp * 16 + lane / 4;  // the lane's first row; its second is 8 on
  rows_of k = part_of(qkv, pair, 1, s), v = part_of(qkv, pair, 2, s);

  fetch<P>(queries, part_of(qkv, pair, 0, s), block * ROWS, s);
  fetch<P>(keys, k, 0, s);
  fetch<P>(values, v, 0, s);
  begin_copies();
  uint32 q[P / 16][4];
  float o[P / 8][4] = {}, top[2] = {-INFINITY, -INFINITY}, sum[2] = {0.f, 0.f};
  for (int j = 0; j <= block; j++) {
    const bf16 *key = keys + j % stages * size, *value = values + j % stages * size;
    if (ahead ? j < block : j > 0) {
      fetch<P>(keys + (j + ahead) % stages * size, k, (j + ahead) * ROWS, s);
      fetch<P>(values + (j + ahead) % stages * size, v, (j + ahead) * ROWS, s);
    }
    begin_copies();
    wait_for_copies<ahead>();
    __syncthreads();
    if (j == 0) left<P>(q, queries + warp * 16 * PITCH(P));
    float p[ROWS / 8][4];
    times_transposed<P>(p, q, key);
    if (j == block)
#pragma unroll
      for (int n = 0; n < ROWS / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
          if (j * ROWS + 8 * n + lane % 4 * 2 + e % 2 > first + e / 2 * 8) p[n][e] = -INFINITY;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float most = top[half];
#pragma unroll
      for (int n = 0; n < ROWS / 8; n++) most = fmaxf(most, fmaxf(p[n][2 * half], p[n][2 * half + 1]));
      most = fmaxf(most, __shfl_xor_sync(ALL, most, 1));
      most = fmaxf(most, __shfl_xor_sync(ALL, most, 2));
      float shift = most * scale_log2, fade = exp2f(top[half] * scale_log2 - shift), part = 0.f;
#pragma unroll
      for (int n = 0; n < ROWS / 8; n++)
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; e++) {
          p[n][e] = exp2f(p[n][e] * scale_log2 - shift);
          part += p[n][e];
        }
      sum[half] = sum[half] * fade + part;
      top[half] = most;
#pragma unroll
      for (int n = 0; n < P / 8; n++) o[n][2 * half] *= fade, o[n][2 * half + 1] *= fade;
    }
    add_times<P>(o, p, value);
    __syncthreads();  // the next turn's copies go where this one has read
  }
  float inverse[2];
#pragma unroll
  for (int half = 0; half < 2; half++) {
    sum[half] += __shfl_xor_sync(ALL, sum[half], 1);
    sum[half] += __shfl_xor_sync(ALL, sum[half], 2);
    inverse[half] = 1.f / sum[half];
    int r = first + 8 * half;
    if (lane % 4 == 0 && r < s.T) lse[(long long)pair * s.T + r] = top[half] * scale_log2 * LN2 + logf(sum[half]);
  }
  write_rows<P>(head_of(out, pair, s), block * ROWS + warp * 16, o, inverse, s);
}

// Gradients of a block of keys and values. A warp keeps 16 keys, so scores lie
// transposed: a row is a key, a column a query. Dynamic shared memory: 2 + 2·STAGES
// tiles, then lse and delta of STAGES blocks of queries.
template <int P>
__device__ inline void backward_keys(bf16 *dqkv, const float *delta, const bf16 *dout, const bf16 *qkv, const float *lse, shape s,
                                     float scale) {
  extern __shared__ __align__(16) bf16 tiles[];
  const int size = ROWS * PITCH(P);
  const float scale_log2 = scale * LOG2E;
  const int stages = STAGES(P), ahead = stages - 1;
  bf16 *keys = tiles, *values = tiles + size, *queries = values + size, *grads = queries + stages * size;
  float *logs = (float *)(grads + stages * size), *deltas = logs + stages * ROWS;
  int pair = blockIdx.x, block = blockIdx.y, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  int blocks = (s.T + ROWS - 1) / ROWS, first = block * ROWS + warp * 16 + lane / 4;
  rows_of q = part_of(qkv, pair, 0, s), g = head_of(dout, pair, s);
  lse += (long long)pair * s.T;
  delta += (long long)pair * s.T;

  fetch<P>(keys, part_of(qkv, pair, 1, s), block * ROWS, s);
  fetch<P>(values, part_of(qkv, pair, 2, s), block * ROWS, s);
  fetch<P>(queries, q, block * ROWS, s);
  fetch<P>(grads, g, block * ROWS, s);
  begin_copies();
  uint32 a[P / 16][4];
  float dk[P / 8][4] = {}, dv[P / 8][4] = {};
  for (int i = block; i < blocks; i++) {
    int now = (i - block) % stages, next = (i - block + ahead) % stages;
    if (ahead ? i + 1 < blocks : i > block) {
      fetch<P>(queries + next * size, q, (i + ahead) * ROWS, s);
      fetch<P>(grads + next * size, g, (i + ahead) * ROWS, s);
    }
    begin_copies();
    for (int r = threadIdx.x; r < ROWS; r += THREADS) {
      bool there = i * ROWS + r < s.T;
      logs[now * ROWS + r] = there ? lse[i * ROWS + r] * LOG2E : INFINITY;  // a query that is not there has no probabilities
      deltas[now * ROWS + r] = there ? delta[i * ROWS + r] : 0.f;
    }
    wait_for_copies<ahead>();
    __syncthreads();
    const bf16 *query = queries + now * size, *grad = grads + now * size;
    float p[ROWS / 8][4], ds[ROWS / 8][4];
    left<P>(a, keys + warp * 16 * PITCH(P));
    times_transposed<P>(p, a, query);
    left<P>(a, values + warp * 16 * PITCH(P));
    times_transposed<P>(ds, a, grad);
#pragma unroll
    for (int n = 0; n < ROWS / 8; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        int column = 8 * n + lane % 4 * 2 + e % 2;
        bool seen = i * ROWS + column >= first + e / 2 * 8;
        p[n][e] = seen ? exp2f(p[n][e] * scale_log2 - logs[now * ROWS + column]) : 0.f;
        ds[n][e] = p[n][e] * (ds[n][e] - deltas[now * ROWS + column]);
      }
    add_times<P>(dv, p, grad);
    add_times<P>(dk, ds, query);
    __syncthreads();
  }
  float one[2] = {1.f, 1.f}, scaled[2] = {scale, scale};
  write_rows<P>(part_of(dqkv, pair, 1, s), block * ROWS + warp * 16, dk, scaled, s);
  write_rows<P>(part_of(dqkv, pair, 2, s), block * ROWS + warp * 16, dv, one, s);
}

// Gradients of a block of queries. Dynamic shared memory: 2 + 2·STAGES tiles.
template <int P>
__device__ inline void backward_queries(bf16 *dqkv, const float *delta, const bf16 *dout, const bf16 *qkv, const float *lse,
                                        shape s, float scale) {
  extern __shared__ __align__(16) bf16 tiles[];
  const int size = ROWS * PITCH(P);
  const float scale_log2 = scale * LOG2E;
  const int stages = STAGES(P), ahead = stages - 1;
  bf16 *queries = tiles, *grads = tiles + size, *keys = grads + size, *values = keys + stages * size;
  int pair = blockIdx.x, block = gridDim.y - 1 - blockIdx.y, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  int first = block * ROWS + warp * 16 + lane / 4;
  rows_of k = part_of(qkv, pair, 1, s), v = part_of(qkv, pair, 2, s);

  fetch<P>(queries, part_of(qkv, pair, 0, s), block * ROWS, s);
  fetch<P>(grads, head_of(dout, pair, s), block * ROWS, s);
  fetch<P>(keys, k, 0, s);
  fetch<P>(values, v, 0, s);
  begin_copies();
  float log[2], shift[2];
#pragma unroll
  for (int half = 0; half < 2; half++) {
    int r = first + 8 * half;
    log[half] = r < s.T ? lse[(long long)pair * s.T + r] * LOG2E : INFINITY;
    shift[half] = r < s.T ? delta[(long long)pair * s.T + r] : 0.f;
  }
  uint32 a[P / 16][4];
  float dq[P / 8][4] = {};
  for (int j = 0; j <= block; j++) {
    const bf16 *key = keys + j % stages * size, *value = values + j % stages * size;
    if (ahead ? j < block : j > 0) {
      fetch<P>(keys + (j + ahead) % stages * size, k, (j + ahead) * ROWS, s);
      fetch<P>(values + (j + ahead) % stages * size, v, (j + ahead) * ROWS, s);
    }
    begin_copies();
    wait_for_copies<ahead>();
    __syncthreads();
    float p[ROWS / 8][4], ds[ROWS / 8][4];
    left<P>(a, queries + warp * 16 * PITCH(P));
    times_transposed<P>(p, a, key);
    left<P>(a, grads + warp * 16 * PITCH(P));
    times_transposed<P>(ds, a, value);
#pragma unroll
    for (int n = 0; n < ROWS / 8; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        bool seen = j * ROWS + 8 * n + lane % 4 * 2 + e % 2 <= first + e / 2 * 8;
        ds[n][e] = seen ? exp2f(p[n][e] * scale_log2 - log[e / 2]) * (ds[n][e] - shift[e / 2]) : 0.f;
      }
    add_times<P>(dq, ds, key);
    __syncthreads();
  }
  float scaled[2] = {scale, scale};
  write_rows<P>(part_of(dqkv, pair, 0, s), block * ROWS + warp * 16, dq, scaled, s);
}

#define FLASH(P)                                                                                                              \
  extern "C" __global__ void __launch_bounds__(THREADS)                                                                       \
      flash_##P(bf16 *out, float *lse, const bf16 *qkv, int T, int H, int D, int by8, float scale) {                          \
    shape s = {T, H, D, by8 != 0};                                                                                            \
    forward<P>(out, lse, qkv, s, scale);                                                                                      \
  }                                                                                                                           \
  extern "C" __global__ void __launch_bounds__(THREADS)                                                                       \
      flash_keys_##P(bf16 *dqkv, const float *delta, const bf16 *dout, const bf16 *qkv, const float *lse, int T, int H,       \
                     int D, int by8, float scale) {                                                                           \
    shape s = {T, H, D, by8 != 0};                                                                                            \
    backward_keys<P>(dqkv, delta, dout, qkv, lse, s, scale);                                                                  \
  }                                                                                                                           \
  extern "C" __global__ void __launch_bounds__(THREADS)                                                                       \
      flash_queries_##P(bf16 *dqkv, const float *delta, const bf16 *dout, const bf16 *qkv, const float *lse, int T, int H,    \
                        int D, int by8, float scale) {                                                                        \
    shape s = {T, H, D, by8 != 0};                                                                                            \
    backward_queries<P>(dqkv, delta, dout, qkv, lse, s, scale);                                                               \
  }
FLASH(64)
FLASH(128)
