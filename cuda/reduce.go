//go:build cuda

package cuda

import "headroom/device"

// rowsAPiece cuts rows into pieces for a reduction over rows. It returns the number of
// rows in each piece and the number of pieces. The scratch memory has room for two sets
// of sums of all pieces. The pieces depend on the sizes alone.
func rowsAPiece(rows, cols int) (each, pieces int) {
	each = 64
	for most := max(1, int(pieceBytes/8)/cols); (rows+each-1)/each > min(most, 512); {
		each *= 2
	}
	return each, (rows + each - 1) / each
}

// columns returns the launch shape of a reduction over rows.
func columns(cols, pieces int) shape {
	return shape{gridX: (cols + 31) / 32, gridY: pieces, blockX: 32, blockY: 8}
}

func (g *gpu) BiasGrad(db, dy device.Tensor, rows, cols int) {
	device.CheckBiasGrad(db, dy, rows, cols)
	each, pieces := rowsAPiece(rows, cols)
	across, w := groups(cols, dy)
	g.launch("column_sums"+types(dy), columns(across, pieces), g.scratch.pieces, dy, rows, across, w, each)
	g.launch("add_pieces", columns(cols, 1), db, g.scratch.pieces, pieces, cols)
}

func (g *gpu) Sum(dst, x device.Tensor) {
	device.CheckSum(dst, x)
	g.sum(dst, x, 0)
}

func (g *gpu) SumSquares(dst, x device.Tensor) {
	device.CheckSumSquares(dst, x)
	g.sum(dst, x, 1)
}

// sum sets dst[0] to the sum of x. If squares is 1, it adds the sum of squares
// to dst[0] instead.
func (g *gpu) sum(dst, x device.Tensor, squares int) {
	s := walk(x.Len)
	s.gridX = min(s.gridX, 1024)
	g.launch("sum_pieces", s, g.scratch.pieces, x, x.Len, squares)
	g.launch("sum_all", shape{gridX: 1, gridY: 1, blockX: 1024, blockY: 1}, dst, g.scratch.pieces, s.gridX, squares)
}

// secondPieces returns the address of the second half of the scratch memory for
// pieces.
func (s *scratch) secondPieces() device.Addr {
	return s.pieces + device.Addr(pieceBytes/2)
}
