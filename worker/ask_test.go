package worker

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"headroom/memory"
	"headroom/runs"
)

// TestAskedForMemory checks that a program can ask the processes of an attempt what their memory is
// held for, and that an answer goes into the books with what the driver says of the same moment.
func TestAskedForMemory(t *testing.T) {
	b := &books{}
	l := begun(t, b, Armed)
	l.o.Look = func(uuid string, pid int, reserved memory.Bytes) *memory.Seen {
		if uuid != "a-b" || pid != os.Getpid() || reserved != 30 {
			t.Errorf("asked for %q, %d, %d", uuid, pid, reserved)
		}
		return &memory.Seen{Total: 100, Free: 40, Self: 35, Others: []memory.Share{{Kind: memory.Others, Bytes: 20, PID: 7, Name: "python"}}}
	}
	if n, err := Ask(l.Socket()); n != 0 || err != nil {
		t.Errorf("no process has said hello: %d, %v", n, err)
	}
	c, silent := dial(t, l), dial(t, l)
	c.read()
	if n, err := Ask(l.Socket()); n != 1 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if a := c.hears(); a.Type != "account" {
		t.Errorf("%+v", a)
	}
	c.send(`{"type":"memory","id":3,"why":"asked","step":40,"device":"cuda:0","uuid":"a-b","total":98,"free":39,"reserved":30,"fragments":{"pieces":8,"number":2,"largest":5},"kinds":{"weights":10,"kept":12,"cache":-8,"gradients":1e99}}`)
	c.send(`{"type":"memory","id":4,"why":"asked","step":40,"device":"cuda:0","uuid":"a-b","total":98,"free":39,"reserved":30,"fragments":{"pieces":8,"number":2,"largest":5},"kinds":{"weights":10,"kept":12,"cache":8}}`)
	if a := c.hears(); a.Type != "heard" || a.ID != 4 {
		t.Errorf("%+v", a)
	}
	c.send(`{"type":"memory","id":5,"why":"failed","step":41,"device":"host","total":60,"base":20,"kinds":{"weights":10}}`)
	if a := c.hears(); a.Type != "heard" || a.ID != 5 {
		t.Errorf("%+v", a)
	}
	_ = silent.conn.Close()
	c.send(`{"type":"bye"}`)
	ended(t, l)
	if _, err := Ask(l.Socket()); err == nil {
		t.Error("nobody is there to be asked")
	}
	var got []memory.Breakdown
	for _, e := range b.entries {
		if e.Kind == runs.KindMemory {
			got = append(got, *e.Breakdown)
			if e.Text != e.Breakdown.String() {
				t.Errorf("%q", e.Text)
			}
		}
	}
	want := []memory.Breakdown{
		{Device: "cuda:0", PID: os.Getpid(), Step: 40, When: memory.WhenAsked, Total: 100, Fragments: &memory.Fragments{Pieces: 8, Number: 2, Largest: 5}, Shares: []memory.Share{{Kind: memory.Weights, Bytes: 10}, {Kind: memory.Kept, Bytes: 12},
			{Kind: memory.Cache, Bytes: 8}, {Kind: memory.Libraries, Bytes: 5}, {Kind: memory.Others, Bytes: 20, PID: 7, Name: "python"}, {Kind: memory.Nameless, Bytes: 5}, {Kind: memory.Unused, Bytes: 40}}},
		{Device: memory.OnHost, PID: os.Getpid(), Step: 41, When: memory.AtFailure, Total: 60, Shares: []memory.Share{{Kind: memory.Weights, Bytes: 10}, {Kind: memory.Libraries, Bytes: 20}, {Kind: memory.Nameless, Bytes: 30}}},
	}
	if !slices.EqualFunc(got, want, func(x, y memory.Breakdown) bool {
		return fmt.Sprint(x.Shares) == fmt.Sprint(y.Shares) && x.String() == y.String() && fmt.Sprint(x.Fragments) == fmt.Sprint(y.Fragments) && x.Total == y.Total
	}) {
		t.Errorf("%+v, want %+v", got, want)
	}
}
