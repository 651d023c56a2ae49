#ifndef HEADROOM_CUDA_BLAS_H
#define HEADROOM_CUDA_BLAS_H

#include <stddef.h>
#include <stdint.h>

// cuBLAS, opened at run time. Statuses are cublasStatus_t; -1 is a function that
// the library lacks.
typedef struct headroom_blas headroom_blas;

// Opens the library at path; NULL with the reason in why.
headroom_blas *headroom_blas_open(const char *path, const char **why);
void headroom_blas_close(headroom_blas *b);
// Makes the handle, with a workspace of its own on the null stream.
int headroom_blas_start(headroom_blas *b, uint64_t workspace, size_t bytes);

// One product, or count products of float32 whose matrices' addresses are in
// arrays on the device. Matrices are, as cuBLAS has them, column-major; ab is the
// cudaDataType of both factors, tc that of the result.
int headroom_blas_product(headroom_blas *b, int compute, int transa, int transb, int m, int n, int k, float alpha,
                          uint64_t a, int lda, uint64_t bb, int ldb, int ab, float beta, uint64_t c, int ldc, int tc);
int headroom_blas_products(headroom_blas *b, int compute, int transa, int transb, int m, int n, int k, float alpha,
                           uint64_t a, int lda, uint64_t bb, int ldb, float beta, uint64_t c, int ldc, int count);

#endif
