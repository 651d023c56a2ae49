#include "common.cuh"

// fault[0] becomes 1 where a token is outside the table; that row becomes 0.
extern "C" __global__ void embed(float *out, const int *tok, const float *tokens, const float *positions, long long rows, int T,
                                 int C, int V, int *fault) {
  long long r = blockIdx.x;
  int token = tok[r], t = r % T;
  bool good = token >= 0 && token < V;
  if (!good && threadIdx.x == 0) atomicExch(fault, 1);
  for (int c = threadIdx.x; c < C; c += blockDim.x)
    out[r * C + c] = good ? tokens[(long long)token * C + c] + positions[(long long)t * C + c] : 0.f;
}

// dpositions[t, c] += Σ_b dout[b, t, c].
extern "C" __global__ void embed_grad_positions(float *dpositions, const float *dout, int B, int T, int C) {
  GRID_STRIDE(i, (long long)T * C) {
    float sum = 0.f;
    for (int b = 0; b < B; b++) sum += dout[(long long)b * T * C + i];
    dpositions[i] += sum;
  }
}

// The block of a token's first occurrence adds up all its occurrences, in the
// order of their positions: no atomics, and no work that grows with the
// vocabulary. 256 threads.
extern "C" __global__ void embed_grad_tokens(float *dtokens, const float *dout, const int *tok, int rows, int C, int V,
                                             int *fault) {
  __shared__ int counts[8], found[256];
  int r = blockIdx.x, token = tok[r];
  if (token < 0 || token >= V) {
    if (threadIdx.x == 0) atomicExch(fault, 1);
    return;
  }
  for (int from = 0; from < r; from += 256) {
    int j = from + threadIdx.x;
    if (__syncthreads_or(j < r && tok[j] == token)) return;
  }
  int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  for (int from = r; from < rows; from += 256) {
    int j = from + threadIdx.x;
    bool mine = j < rows && tok[j] == token;
    uint32 votes = __ballot_sync(ALL, mine);
    if (lane == 0) counts[warp] = __popc(votes);
    __syncthreads();
    int before = 0, all = 0;
    for (int w = 0; w < 8; w++) {
      before += w < warp ? counts[w] : 0;
      all += counts[w];
    }
    if (mine) found[before + __popc(votes & ((1u << lane) - 1))] = j;
    __syncthreads();
    if (all > 0)
      for (int c = threadIdx.x; c < C; c += 256) {
        float sum = dtokens[(long long)token * C + c];
        for (int i = 0; i < all; i++) sum += dout[(long long)found[i] * C + c];
        dtokens[(long long)token * C + c] = sum;
      }
    __syncthreads();
  }
}
