package host

import (
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
)

// parallel calls f for consecutive pieces [from, to) of [0, n), each of grain elements,
// except that the last may be shorter. The pieces do not depend on the number of workers;
// which worker gets which piece may vary. f may use worker, in [0, d.workers), to pick
// scratch of its own.
func (d *Device) parallel(n, grain int, f func(worker, from, to int)) {
	pieces := (n + grain - 1) / grain
	workers := min(d.workers, pieces)
	if workers <= 1 {
		for from := 0; from < n; from += grain {
			f(0, from, min(n, from+grain))
		}
		return
	}
	var (
		next   atomic.Int64
		failed atomic.Pointer[workerPanicError]
		others sync.WaitGroup
	)
	work := func(worker int) {
		defer func() {
			if v := recover(); v != nil {
				failed.CompareAndSwap(nil, &workerPanicError{v, debug.Stack()})
			}
		}()
		for failed.Load() == nil {
			piece := int(next.Add(1)) - 1
			if piece >= pieces {
				return
			}
			f(worker, piece*grain, min(n, (piece+1)*grain))
		}
	}
	for worker := 1; worker < workers; worker++ {
		others.Go(func() { work(worker) })
	}
	work(0)
	others.Wait()
	if p := failed.Load(); p != nil {
		panic(p)
	}
}

// workerPanicError carries a worker's panic to the caller of parallel. In the
// worker's own goroutine the panic would end the process, because the caller
// cannot recover it there.
type workerPanicError struct {
	value any
	stack []byte
}

func (p *workerPanicError) Error() string {
	return fmt.Sprintf("%v\n\nin a worker:\n%s", p.value, p.stack)
}

// Unwrap returns the value that the worker panicked with if it is an error,
// else nil.
func (p *workerPanicError) Unwrap() error {
	err, _ := p.value.(error)
	return err
}

// grain returns how many rows of cols elements make a piece that is worth
// handing to another goroutine. It depends on the shape alone, and so do sums
// over the pieces.
func grain(cols int) int { return max(1, 16384/max(1, cols)) }
