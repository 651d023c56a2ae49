#include "common.cuh"

// Loshchilov and Hutter, "Decoupled weight decay regularization", 2019, algorithm 2.
// Nothing is written if an earlier operation met an index outside its table:
// weights outlive the step, its other results do not.
// step_size = LR/(1−β₁ᵗ), root = 1/√(1−β₂ᵗ), both computed in double on the host.
extern "C" __global__ void adamw(float *w, const float *g, float *m, float *v, long long n, float lr, float beta1, float beta2,
                                 float eps, float decay, float grad_scale, float step_size, float root,
                                 const int *fault) {
  if (*fault != 0) return;
  GRID_STRIDE(i, n) {
    float gi = g[i] * grad_scale;
    float mi = beta1 * m[i] + (1.f - beta1) * gi;
    float vi = beta2 * v[i] + (1.f - beta2) * gi * gi;
    m[i] = mi;
    v[i] = vi;
    float wi = w[i] - lr * decay * w[i];
    w[i] = wi - step_size * mi / (sqrtf(vi) * root + eps);
  }
}

extern "C" __global__ void sgd(float *w, const float *g, float *m, long long n, float lr, float momentum, float decay,
                               float grad_scale, const int *fault) {
  if (*fault != 0) return;
  GRID_STRIDE(i, n) {
    float d = grad_scale * g[i] + decay * w[i];
    float mi = momentum * m[i] + d;
    m[i] = mi;
    w[i] -= lr * mi;
  }
}
