package host

import (
	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/gonum"
)

// gemm calls gonum's Sgemm with alpha 1, for a caller that is itself one of
// several workers. It passes at most 64 columns at a time, because gonum uses a
// single goroutine for a result of so few columns and at most 192 rows.
func gemm(ta, tb blas.Transpose, m, n, k int, a []float32, lda int, b []float32, ldb int, beta float32, c []float32, ldc int) {
	const columns = 64
	for j := 0; j < n; j += columns {
		from := j
		if tb == blas.Trans {
			from = j * ldb
		}
		gonum.Implementation{}.Sgemm(ta, tb, m, min(columns, n-j), k, 1, a, lda, b[from:], ldb, beta, c[j:], ldc)
	}
}
