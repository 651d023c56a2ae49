package report

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"

	"headroom/runs"
)

// Prometheus writes the state of the run in dir, in Prometheus' text format, version
// 0.0.4. It leaves out numbers that are not known. A run that has just begun has no
// status yet, and therefore none of the numbers that come from the status.
func Prometheus(w io.Writer, dir string) error {
	in, status, err := read(dir)
	if err != nil {
		return err
	}
	if status == nil {
		status = &runs.Status{State: runs.StateRunning}
	}
	e := exposition{run: in.Name}
	r := New(in)
	e.put("headroom_run_running", "gauge", "Whether the run is in progress: 1, or 0 once it has ended.", yes(status.State == runs.StateRunning))
	e.put("headroom_attempts_total", "counter", "Attempts of the run, including the current one.", float64(status.Attempt))
	e.put("headroom_out_of_memory_total", "counter", "Out-of-memory failures, survived or not.", float64(r.Failures.Total))
	e.put("headroom_survived_in_place_total", "counter", "Out-of-memory failures survived inside a process of the command.", float64(r.Failures.InPlace))
	if r.Failures.Lost > 0 || r.Failures.Uncounted == 0 {
		e.put("headroom_lost_seconds_total", "counter", "Time lost to failures, remedies and searches.", r.Failures.Lost)
	}
	e.put("headroom_checkpoint_step", "gauge", "Optimizer step of the newest checkpoint.", float64(r.Checkpoints.Newest))
	r.body.gauges(&e, status)
	if status.Plan.Effective >= r.body.leastBatch {
		e.put("headroom_batch_effective", "gauge", "Samples per optimizer step, over all ranks.", float64(status.Plan.Effective))
		e.put("headroom_batch_micro", "gauge", "Samples per micro-batch on each rank.", float64(status.Plan.Largest()))
	}
	if n := len(in.Seen); n > 0 {
		s := in.Seen[n-1]
		e.put("headroom_process_steps_total", "counter", "Optimizer steps of the process that ran the newest step.", float64(s.Made))
		e.put("headroom_step_seconds", "gauge", "Seconds per optimizer step, over the newest steps.", s.Seconds)
		if s.Rows > 0 { // otherwise the batches were not inspected
			e.put("headroom_batch_rows", "gauge", "Rows of the newest batch.", float64(s.Rows))
			e.put("headroom_batch_pieces", "gauge", "Pieces that the newest batch was run in.", float64(s.Pieces))
		}
		if s.Host > 0 || s.Lost > 0 {
			e.put("headroom_memory_host_bytes", "gauge", "Memory of the host that the newest step used in place of the GPU's.", float64(s.Host))
			e.put("headroom_host_seconds_total", "counter", "Seconds that the process's steps have taken longer for memory of the host, as far as that is known.", s.Lost)
		}
		if s.Memory.Capacity > 0 {
			e.put("headroom_memory_allocated_bytes", "gauge", "Memory allocated after the newest step.", float64(s.Memory.Allocated))
			e.put("headroom_memory_reserved_bytes", "gauge", "Memory that the allocator had reserved after the newest step.", float64(s.Memory.Reserved))
			e.put("headroom_memory_peak_bytes", "gauge", "Peak memory allocated by the process so far.", float64(s.Memory.Peak))
			e.put("headroom_memory_capacity_bytes", "gauge", "Memory of the device.", float64(s.Memory.Capacity))
		}
	}
	if _, err := e.WriteTo(w); err != nil {
		return fmt.Errorf("write the metrics of %s: %w", in.Name, err)
	}
	return nil
}

func yes(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// exposition collects the metrics of one run in Prometheus' text format.
type exposition struct {
	bytes.Buffer
	run string
}

// put adds a metric with a single value.
func (e *exposition) put(name, kind, help string, value float64) {
	label := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(e.run)
	fmt.Fprintf(e, "# HELP %s %s\n# TYPE %s %s\n%s{run=\"%s\"} %s\n", name, help, name, kind, name, label, strconv.FormatFloat(value, 'g', -1, 64))
}
