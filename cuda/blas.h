#ifndef HEADROOM_CUDA_BLAS_H
#define HEADROOM_CUDA_BLAS_H

#include <stddef.h>
#include <stdint.h>

// cuBLAS, opened at run time. Functions that return int return a cublasStatus_t.
typedef struct headroom_blas headroom_blas;

// Opens the library at path. If that fails, returns NULL and sets *why to the
// reason.
headroom_blas *headroom_blas_open(const char *path, const char **why);
void headroom_blas_close(headroom_blas *b);
// Creates the handle, on the null stream, with the given device memory as its
// workspace.
int headroom_blas_start(headroom_blas *b, uint64_t workspace, size_t bytes);

// headroom_blas_product computes one product. headroom_blas_products computes
// count products of float32 matrices, whose addresses are in arrays on the
// device. Matrices are column-major, as in cuBLAS. ab is the cudaDataType of both
// factors, tc that of the result.
int headroom_blas_product(headroom_blas *b, int compute, int transa, int transb, int m, int n, int k, float alpha,
                          uint64_t a, int lda, uint64_t bb, int ldb, int ab, float beta, uint64_t c, int ldc, int tc);
int headroom_blas_products(headroom_blas *b, int compute, int transa, int transb, int m, int n, int k, float alpha,
                           uint64_t a, int lda, uint64_t bb, int ldb, float beta, uint64_t c, int ldc, int count);

#endif
