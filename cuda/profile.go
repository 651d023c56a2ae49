//go:build cuda

package cuda

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"gorgonia.org/cu"

	"headroom/device"
)

// profile measures how long each call takes on the GPU, with an event before the
// call and one after it.
type profile struct{ spans []span }

type span struct {
	name       string
	begin, end cu.Event
}

// Profile starts to time every call on d, which must be a device that Open returned. stop
// waits for the GPU, ends the timing and returns how long each kind of work took, longest
// first. Timing a call delays the GPU by a few microseconds, which are not counted.
func Profile(d device.Device) (stop func() ([]Timed, error), err error) {
	g, ok := d.(*gpu)
	if !ok {
		return nil, fmt.Errorf("profile: %s is not a GPU", d.Name())
	}
	if err := g.Sync(); err != nil {
		return nil, err
	}
	g.profile = &profile{}
	return g.stopProfile, nil
}

func (g *gpu) stopProfile() ([]Timed, error) {
	p := g.profile
	g.profile = nil
	if p == nil {
		return nil, errors.New("profile: already stopped")
	}
	if err := g.Sync(); err != nil {
		return nil, err
	}
	totals := map[string]*Timed{}
	err := g.bound.do(func() error {
		var errs []error
		for _, s := range p.spans {
			ms, err := s.begin.Elapsed(s.end)
			errs = append(errs, err, cu.DestroyEvent(&s.begin), cu.DestroyEvent(&s.end))
			t := totals[s.name]
			if t == nil {
				t = &Timed{Name: s.name}
				totals[s.name] = t
			}
			t.Calls++
			t.Time += time.Duration(ms * float64(time.Millisecond))
		}
		return errors.Join(errs...)
	})
	var all []Timed
	for _, t := range totals {
		all = append(all, *t)
	}
	slices.SortFunc(all, func(a, b Timed) int { return cmp.Or(cmp.Compare(b.Time, a.Time), cmp.Compare(a.Name, b.Name)) })
	return all, err
}

// around calls f between two events.
func (p *profile) around(name string, f func() error) error {
	begin, err1 := cu.MakeEvent(cu.DefaultEvent)
	end, err2 := cu.MakeEvent(cu.DefaultEvent)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	p.spans = append(p.spans, span{name, begin, end})
	return errors.Join(begin.Record(cu.Stream{}), f(), end.Record(cu.Stream{}))
}
