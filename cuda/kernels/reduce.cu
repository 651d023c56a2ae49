#include "common.cuh"

// Reductions go in two steps: blocks reduce fixed pieces into a scratch buffer,
// then one block (or one thread a column) adds the pieces up in order. How many
// pieces there are depends on the size alone, never on the device.

// partial[p, c] = Σ over the rows of piece p of dy[r, c]. A block is 32 groups of
// W columns wide and 8 rows deep; blockIdx.y is the piece.
template <int W, typename T>
__device__ inline void column_sums_of(float *partial, const T *dy, int rows, int across, int rows_a_piece) {
  __shared__ float tile[8][WARP][W];
  int c = blockIdx.x * WARP + threadIdx.x;
  int from = blockIdx.y * rows_a_piece, to = min(rows, from + rows_a_piece);
  float sum[W] = {}, v[W];
  if (c < across)
#pragma unroll 4
    for (int r = from + threadIdx.y; r < to; r += 8) {
      wide<W>::load(v, dy, (long long)r * across + c);
#pragma unroll
      for (int j = 0; j < W; j++) sum[j] += v[j];
    }
#pragma unroll
  for (int j = 0; j < W; j++) tile[threadIdx.y][threadIdx.x][j] = sum[j];
  __syncthreads();
  if (threadIdx.y == 0 && c < across) {
    for (int y = 1; y < 8; y++)
#pragma unroll
      for (int j = 0; j < W; j++) sum[j] += tile[y][threadIdx.x][j];
    for (int j = 0; j < W; j++) partial[((long long)blockIdx.y * across + c) * W + j] = sum[j];
  }
}

#define COLUMN_SUMS(type, T)                                                                                             \
  extern "C" __global__ void column_sums_##type(float *partial, const T *dy, int rows, int across, int W,                \
                                                int rows_a_piece) {                                                      \
    if (W == 4)                                                                                                          \
      column_sums_of<4>(partial, dy, rows, across, rows_a_piece);                                                        \
    else                                                                                                                 \
      column_sums_of<1>(partial, dy, rows, across, rows_a_piece);                                                        \
  }
EACH_TYPE(COLUMN_SUMS)

// out[c] += Σ_p partial[p, c]. A block is 32 columns wide; its 8 rows of threads
// take every eighth piece each.
extern "C" __global__ void add_pieces(float *out, const float *partial, int pieces, int cols) {
  __shared__ float tile[8][WARP];
  int c = blockIdx.x * WARP + threadIdx.x;
  float sum = 0.f;
  if (c < cols)
#pragma unroll 4
    for (int p = threadIdx.y; p < pieces; p += 8) sum += partial[(long long)p * cols + c];
  tile[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y == 0 && c < cols) {
    for (int y = 1; y < 8; y++) sum += tile[y][threadIdx.x];
    out[c] += sum;
  }
}

// partial[block] = Σ of the block's elements, squared if asked. The grid is the
// number of pieces.
extern "C" __global__ void sum_pieces(float *partial, const float *x, long long n, int squared) {
  __shared__ float shared[WARP];
  float sum = 0.f;
  GRID_STRIDE(i, n) sum += squared ? x[i] * x[i] : x[i];
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

// dst[0] = (accumulate ? dst[0] : 0) + Σ partial. One block.
extern "C" __global__ void sum_all(float *dst, const float *partial, int pieces, int accumulate) {
  __shared__ float shared[WARP];
  float sum = 0.f;
  for (int i = threadIdx.x; i < pieces; i += blockDim.x) sum += partial[i];
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) dst[0] = accumulate ? dst[0] + sum : sum;
}
