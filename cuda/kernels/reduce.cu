#include "common.cuh"

// Reductions go in two steps: blocks reduce fixed pieces into a scratch buffer,
// then one block (or one thread a column) adds the pieces up in order. How many
// pieces there are depends on the size alone, never on the device.

// partial[p, c] = Σ over the rows of piece p of dy[r, c]. A block is 32 columns
// wide and 8 rows deep; blockIdx.y is the piece.
extern "C" __global__ void column_sums(float *partial, const float *dy, int rows, int cols, int rows_a_piece) {
  __shared__ float tile[8][WARP + 1];
  int c = blockIdx.x * WARP + threadIdx.x;
  int from = blockIdx.y * rows_a_piece, to = min(rows, from + rows_a_piece);
  float sum = 0.f;
  if (c < cols)
    for (int r = from + threadIdx.y; r < to; r += 8) sum += dy[(long long)r * cols + c];
  tile[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y == 0 && c < cols) {
    for (int y = 1; y < 8; y++) sum += tile[y][threadIdx.x];
    partial[(long long)blockIdx.y * cols + c] = sum;
  }
}

// out[c] += Σ_p partial[p, c].
extern "C" __global__ void add_pieces(float *out, const float *partial, int pieces, int cols) {
  GRID_STRIDE(c, cols) {
    float sum = 0.f;
    for (int p = 0; p < pieces; p++) sum += partial[(long long)p * cols + c];
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
