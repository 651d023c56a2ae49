#include "common.cuh"

#define IGNORE_INDEX (-100)
#define LOWEST (-3.402823466e38f)  // finite, so that its distance from −∞ is no NaN

// One block a row of stride elements, of which the first classes count; the rest
// become 0. fault[0] becomes 1 where a target is outside [0, classes).
template <typename T>
__device__ inline void cross_entropy_row(float *loss, T *logits, const int *target, int classes, int stride, float scale,
                                         int *fault) {
  __shared__ float shared[WARP];
  long long r = blockIdx.x;
  T *row = logits + r * stride;
  int want = target[r];
  if (want == IGNORE_INDEX || want < 0 || want >= classes) {
    for (int c = threadIdx.x; c < stride; c += blockDim.x) put(row, c, 0.f);
    if (threadIdx.x == 0) {
      loss[r] = 0.f;
      if (want != IGNORE_INDEX) atomicExch(fault, 1);
    }
    return;
  }
  // The largest and the sum of exponentials in one pass: a thread scales its sum
  // anew where it meets a larger one.
  float largest = LOWEST, part = 0.f;
#pragma unroll 4
  for (int c = threadIdx.x; c < classes; c += blockDim.x) {
    float v = get(row, c);
    if (v > largest) {
      part = part * expf(largest - v) + 1.f;
      largest = v;
    } else {
      part += expf(v - largest);
    }
  }
  float top = block_max(largest, shared);
  float sum = block_sum(part * expf(largest - top), shared);
  float log_sum = logf(sum), wanted = get(row, want);
  __syncthreads();  // everyone has read row[want] before it is replaced
  float norm = scale / sum;
#pragma unroll 4
  for (int c = threadIdx.x; c < classes; c += blockDim.x)
    put(row, c, expf(get(row, c) - top) * norm - (c == want ? scale : 0.f));
  for (int c = classes + threadIdx.x; c < stride; c += blockDim.x) put(row, c, 0.f);
  if (threadIdx.x == 0) loss[r] = log_sum - (wanted - top);
}

#define CROSS_ENTROPY(type, T)                                                                                          \
  extern "C" __global__ void cross_entropy_##type(float *loss, T *logits, const int *target, int classes, int stride,   \
                                                  float scale, int *fault) {                                            \
    cross_entropy_row(loss, logits, target, classes, stride, scale, fault);                                             \
  }
EACH_TYPE(CROSS_ENTROPY)
