package cuda

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"testing"
	"time"

	"headroom/cuda/driver"
	"headroom/memory"
)

func TestTook(t *testing.T) {
	self := Holder{PID: 1, Name: "headroom", Bytes: 4 * memory.GiB, Self: true}
	python := func(held memory.Bytes) Holder { return Holder{PID: 4711, Name: "python", Bytes: held} }
	for _, c := range []struct {
		name        string
		before, now []Holder
		want        string
	}{
		{"one came", []Holder{self}, []Holder{self, python(21*memory.GiB + 307*memory.MiB)}, "python (pid 4711) took 21.3 GiB"},
		{"one grew", []Holder{self, python(2 * memory.GiB)}, []Holder{self, python(3 * memory.GiB)}, "python (pid 4711) took 1 GiB"},
		{"nothing known of before", nil, []Holder{self, python(memory.GiB)}, "python (pid 4711) took 1 GiB"},
		{"one shrank", []Holder{self, python(2 * memory.GiB)}, []Holder{self, python(memory.GiB)}, ""},
		{"one left", []Holder{self, python(memory.GiB)}, []Holder{self}, ""},
		{"as before", []Holder{self, python(memory.GiB)}, []Holder{self, python(memory.GiB)}, ""},
		{"only this process grew", nil, []Holder{self}, ""},
		{"pids of another namespace", nil, []Holder{python(memory.GiB)}, ""},
		{"nobody known", nil, nil, ""},
		{"name not visible", nil, []Holder{self, {PID: 12, Bytes: memory.GiB}}, "pid 12 took 1 GiB"},
		{"amount not known", nil, []Holder{self, python(Unknown)}, "python (pid 4711) came, holding an unknown amount"},
		{"amount not known before", []Holder{self, python(Unknown)}, []Holder{self, python(memory.GiB)}, ""},
		{"amount not known now", []Holder{self, python(memory.GiB)}, []Holder{self, python(Unknown)}, ""},
		{"largest first, the rest counted", []Holder{self}, []Holder{
			{PID: 5, Name: "e", Bytes: Unknown}, {PID: 4, Name: "d", Bytes: memory.MiB}, self,
			{PID: 3, Name: "c", Bytes: memory.GiB}, {PID: 2, Name: "b", Bytes: memory.GiB}, python(2 * memory.GiB),
		}, "python (pid 4711) took 2 GiB, b (pid 2) took 1 GiB, c (pid 3) took 1 GiB, and 2 more"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Took(c.before, c.now); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

func TestHolder(t *testing.T) {
	if h := newHolder(os.Getpid(), memory.GiB); !h.Self || h.Name == "" || h.Bytes != memory.GiB {
		t.Errorf("this process is %+v", h)
	}
	if h := newHolder(1<<30, Unknown); h.Self || h.Name != "" || h.String() != "pid 1073741824" {
		t.Errorf("a process that is not there is %+v, %v", h, h)
	}
}

func TestJSONLeavesOutTheUnknown(t *testing.T) {
	for want, v := range map[string]any{
		`{"index":0}`: GPU{Total: Unknown, Free: Unknown, Used: Unknown, Reserved: Unknown, Utilisation: Unknown, Temperature: Unknown, UncorrectedECC: Unknown},
		`{"free":1099511627776,"holders":[{"bytes":1048576,"name":"python","pid":7},{"pid":8}],"index":1,"temperature":0,"throttled":[],"total":0,"uncorrected_ecc":0,"used":0,"utilisation":0,"uuid":"GPU-1"}`: GPU{
			Index: 1, UUID: "GPU-1", Free: memory.TiB, Reserved: Unknown, Throttled: []string{},
			Holders: []Holder{{PID: 7, Name: "python", Bytes: memory.MiB}, {PID: 8, Bytes: Unknown}}},
		`{"version":"580"}`: Driver{Version: "580"},
	} {
		if got, err := json.Marshal(v); string(got) != want || err != nil {
			t.Errorf("%s, %v\nwant %s", got, err, want)
		}
	}
}

func TestXidString(t *testing.T) {
	for x, want := range map[Xid]string{
		{GPU: 2, Code: 79}:  "Xid 79 on GPU 2: the GPU has fallen off the bus",
		{GPU: 0, Code: 999}: "Xid 999 on GPU 0",

		{GPU: Unknown, Code: 61}: "Xid 61 on an unknown GPU: internal micro-controller breakpoint",
	} {
		if got := x.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestEveryCallAnswers holds that nothing crashes, and that what is missing is
// said in a typed error, with or without a GPU, NVML and the build tag.
func TestEveryCallAnswers(t *testing.T) {
	check := func(call string, err error) {
		t.Helper()
		var nvml *NVMLUnavailable
		var cuda *driver.Unavailable
		switch {
		case err == nil:
		case !errors.As(err, &nvml) && !errors.As(err, &cuda):
			t.Errorf("%s: %T: %v", call, err, err)
		default:
			t.Logf("%s: %v", call, err)
		}
	}
	for range 2 { // the second answer comes from memory
		all, err := GPUs()
		check("GPUs", err)
		if (err == nil) == (all == nil) {
			t.Errorf("GPUs: %v and %v", all, err)
		}
		_, err = GPUOf(0)
		check("GPUOf", err)
		_, err = VisibleGPUs()
		check("VisibleGPUs", err)
		_, err = DriverVersions()
		check("DriverVersions", err)
		w, err := Watch(t.Context())
		check("Watch", err)
		if err == nil {
			check("Close", w.Close())
		}
	}
}

// scripted is a source that gives what is sent to it.
type scripted struct {
	steps   chan scriptedStep
	waiting chan struct{} // receives once per wait
	closed  int
}

type scriptedStep struct {
	xid Xid
	ok  bool
	err error
}

func newScripted(steps ...scriptedStep) *scripted {
	s := &scripted{steps: make(chan scriptedStep, len(steps)), waiting: make(chan struct{}, 1)}
	for _, step := range steps {
		s.steps <- step
	}
	return s
}

func (s *scripted) wait(time.Duration) (Xid, bool, error) {
	select {
	case s.waiting <- struct{}{}:
	default:
	}
	select {
	case step := <-s.steps:
		return step.xid, step.ok, step.err
	default:
		return Xid{}, false, nil
	}
}

func (s *scripted) close() { s.closed++ }

func TestWatcherTellsInOrder(t *testing.T) {
	broken := errors.New("broken")
	s := newScripted(scriptedStep{xid: Xid{Code: 13}, ok: true}, scriptedStep{},
		scriptedStep{xid: Xid{Code: 43}, ok: true}, scriptedStep{err: broken}, scriptedStep{xid: Xid{Code: 1}, ok: true})
	w := watch(t.Context(), s)
	var codes []int
	for x := range w.Events() {
		codes = append(codes, x.Code)
	}
	if len(codes) != 2 || codes[0] != 13 || codes[1] != 43 {
		t.Errorf("told %v, want 13 and 43", codes)
	}
	for range 2 {
		if err := w.Close(); !errors.Is(err, broken) {
			t.Errorf("Close: %v, want %v", err, broken)
		}
	}
	if s.closed != 1 {
		t.Errorf("the source was closed %d times", s.closed)
	}
}

// TestWatcherEnds holds that a watch ends whatever it is doing, and that its
// source is closed when Close returns.
func TestWatcherEnds(t *testing.T) {
	for name, steps := range map[string][]scriptedStep{
		"waiting":           nil,
		"nobody to tell it": {{xid: Xid{Code: 13}, ok: true}},
	} {
		for _, by := range []string{"Close", "context"} {
			t.Run(name+"/"+by, func(t *testing.T) {
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				s := newScripted(steps...)
				w := watch(ctx, s)
				<-s.waiting
				if by == "context" {
					cancel()
					<-w.done
				}
				if err := w.Close(); err != nil {
					t.Error(err)
				}
				if s.closed != 1 {
					t.Errorf("the source was closed %d times", s.closed)
				}
				if _, open := <-w.Events(); open {
					t.Error("an event came after the end")
				}
			})
		}
	}
}
