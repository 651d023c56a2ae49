//go:build cuda

#include "blas.h"

#include <dlfcn.h>
#include <stdlib.h>

// Constants of cuBLAS and of library_types.h.
#define R_32F 0
#define GEMM_DEFAULT (-1)

typedef void *handle;

struct headroom_blas {
  void *library;
  handle h;
  int (*create)(handle *);
  int (*destroy)(handle);
  int (*workspace)(handle, void *, size_t);
  int (*product)(handle, int, int, int, int, int, const void *, const void *, int, int, const void *, int, int, const void *,
                 void *, int, int, int, int);
  int (*products)(handle, int, int, int, int, int, const void *, const void *, int, int, const void *, int, int,
                  const void *, void *, int, int, int, int, int);
};

headroom_blas *headroom_blas_open(const char *path, const char **why) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    *why = dlerror();
    return NULL;
  }
  headroom_blas *b = calloc(1, sizeof *b);
  if (b == NULL) {
    *why = "out of host memory";
    return NULL;
  }
  b->library = library;
  *(void **)&b->create = dlsym(library, "cublasCreate_v2");
  *(void **)&b->destroy = dlsym(library, "cublasDestroy_v2");
  *(void **)&b->workspace = dlsym(library, "cublasSetWorkspace_v2");
  *(void **)&b->product = dlsym(library, "cublasGemmEx");
  *(void **)&b->products = dlsym(library, "cublasGemmBatchedEx");
  if (!b->create || !b->destroy || !b->product || !b->products) {
    *why = "it lacks functions that cuBLAS 11 and later have";
    headroom_blas_close(b);
    return NULL;
  }
  return b;
}

void headroom_blas_close(headroom_blas *b) {
  if (b->h != NULL) b->destroy(b->h);
  dlclose(b->library);
  free(b);
}

int headroom_blas_start(headroom_blas *b, uint64_t workspace, size_t bytes) {
  int status = b->create(&b->h);
  if (status == 0 && b->workspace != NULL) status = b->workspace(b->h, (void *)workspace, bytes);
  return status;
}

int headroom_blas_product(headroom_blas *b, int compute, int transa, int transb, int m, int n, int k, float alpha,
                          uint64_t a, int lda, uint64_t bb, int ldb, int ab, float beta, uint64_t c, int ldc, int tc) {
  return b->product(b->h, transa, transb, m, n, k, &alpha, (const void *)a, ab, lda, (const void *)bb, ab, ldb, &beta,
                    (void *)c, tc, ldc, compute, GEMM_DEFAULT);
}

int headroom_blas_products(headroom_blas *b, int compute, int transa, int transb, int m, int n, int k, float alpha,
                           uint64_t a, int lda, uint64_t bb, int ldb, float beta, uint64_t c, int ldc, int count) {
  return b->products(b->h, transa, transb, m, n, k, &alpha, (const void *)a, R_32F, lda, (const void *)bb, R_32F, ldb, &beta,
                     (void *)c, R_32F, ldc, count, compute, GEMM_DEFAULT);
}
