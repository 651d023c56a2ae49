#include "common.cuh"

#define IGNORE_INDEX (-100)

// One block a row. fault[0] becomes 1 + the first bad target seen, if any; the
// value is only read as "some target was bad".
extern "C" __global__ void cross_entropy(float *loss, float *logits, const int *target, int classes, float scale, int *fault) {
  __shared__ float shared[WARP];
  long long r = blockIdx.x;
  float *row = logits + r * classes;
  int want = target[r];
  if (want == IGNORE_INDEX || want < 0 || want >= classes) {
    for (int c = threadIdx.x; c < classes; c += blockDim.x) row[c] = 0.f;
    if (threadIdx.x == 0) {
      loss[r] = 0.f;
      if (want != IGNORE_INDEX) atomicExch(fault, 1);
    }
    return;
  }
  float top = -INFINITY;
  for (int c = threadIdx.x; c < classes; c += blockDim.x) top = fmaxf(top, row[c]);
  top = block_max(top, shared);
  float sum = 0.f;
  for (int c = threadIdx.x; c < classes; c += blockDim.x) sum += expf(row[c] - top);
  sum = block_sum(sum, shared);
  float log_sum = logf(sum), wanted = row[want];
  __syncthreads();  // everyone has read row[want] before it is replaced
  float norm = scale / sum;
  for (int c = threadIdx.x; c < classes; c += blockDim.x)
    row[c] = expf(row[c] - top) * norm - (c == want ? scale : 0.f);
  if (threadIdx.x == 0) loss[r] = log_sum - (wanted - top);
}
