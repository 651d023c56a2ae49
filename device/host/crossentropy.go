package host

import (
	"fmt"
	"math"

	"headroom/device"
)

// CrossEntropy computes the loss of every row and replaces the logits by
// scale·(softmax − onehot(target)).
func (d *Device) CrossEntropy(loss, logits, target device.Tensor, rows, classes int, scale float32) {
	const op = "CrossEntropy"
	device.CheckCrossEntropy(loss, logits, target, rows, classes)
	losses, x := d.floats(op, "loss", loss), d.floats(op, "logits", logits)
	targets := d.ints(op, "target", target)
	if d.failed() {
		return
	}
	for r, t := range targets {
		if t != device.IgnoreIndex && (t < 0 || int(t) >= classes) {
			d.fail(fmt.Errorf("%s: target %d in row %d: must be 0 to %d, or %d to leave the row out", op, t, r, classes-1, device.IgnoreIndex))
			return
		}
	}
	stride := len(x) / rows
	d.parallel(rows, max(1, grain(classes)/4), func(_, first, last int) {
		for r := first; r < last; r++ {
			row := x[r*stride:][:stride]
			losses[r] = crossEntropyRow(row[:classes], int(targets[r]), scale)
			clear(row[classes:])
		}
	})
	d.store(logits, x)
}

func crossEntropyRow(x []float32, target int, scale float32) (loss float32) {
	if target == device.IgnoreIndex {
		clear(x)
		return 0
	}
	most := largest(x)
	below := most - x[target]
	sum := expRow(x, x, 1, most)
	// This is not computed as norm·x[target] − scale, which would cancel near a
	// probability of 1.
	hit := float32(float64(scale) * (float64(x[target]) - sum) / sum)
	norm := float32(float64(scale) / sum)
	for i := range x {
		x[i] *= norm
	}
	x[target] = hit
	return float32(math.Log(sum)) + below
}

// largest returns the largest element of x. It may skip a NaN, which shows up
// in the caller's sum of exponentials anyway.
func largest(x []float32) float32 {
	most := x[0]
	for _, v := range x[1:] {
		if v > most {
			most = v
		}
	}
	return most
}
