package nodes

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"headroom/memory"
	"headroom/wrap/command"
	"headroom/wrap/exits"
)

var times = TimesFor(DefaultGone)

// kinds are ends of a node's part of an attempt, the one that counts most first.
var kinds = []Report{
	{Error: "python: not found", Outcome: exits.Outcome{Kind: exits.Failed}},
	{Outcome: exits.Outcome{Kind: exits.Stopped}},
	{Outcome: exits.Outcome{Kind: exits.OutOfMemory, Confidence: exits.Likely, Evidence: &memory.Evidence{}}},
	{Outcome: exits.Outcome{Kind: exits.DeviceGone}},
	{Outcome: exits.Outcome{Kind: exits.Leaking}},
	{Outcome: exits.Outcome{Kind: exits.Hung}},
	{Outcome: exits.Outcome{Kind: exits.OutOfMemory, Confidence: exits.Possible}},
	{Outcome: exits.Outcome{Kind: exits.Failed}},
	{Peer: true, Outcome: exits.Outcome{Kind: exits.Failed}},
	{Outcome: exits.Outcome{Kind: exits.Done}},
}

// TestCounts checks that the report that decides is the one that tells most, on whichever node it is and
// whenever it came; and of several that tell as much, the first.
func TestCounts(t *testing.T) {
	for i, more := range kinds {
		for j, less := range kinds[i+1:] {
			more.Order = 1
			if Counts([]Report{more, less}) != 0 || Counts([]Report{less, more}) != 1 {
				t.Errorf("kind %d does not count more than kind %d", i, i+1+j)
			}
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		order := rapid.Permutation([]int{0, 1, 2, 3, 4}).Draw(t, "order")
		var all []Report
		var which []int
		for i := range order {
			k := rapid.IntRange(0, len(kinds)-1).Draw(t, "kind")
			r := kinds[k]
			r.Order = order[i]
			all, which = append(all, r), append(which, k)
		}
		got := Counts(all)
		for i := range all {
			if which[i] < which[got] || which[i] == which[got] && all[i].Order < all[got].Order {
				t.Fatalf("of %v in order %v, node %d counts", which, order, got)
			}
		}
	})
}

// member returns what is known about a node that takes part, and was just heard of.
func member(node int, change func(*Seen)) Seen {
	s := Seen{State: State{Node: node, Of: 3, Start: string(rune('a' + node)), Attempt: 4}, Lives: true}
	s.Member = s.State.Start
	if change != nil {
		change(&s)
	}
	return s
}

func TestEnding(t *testing.T) {
	reports := func(attempt int, r Report) func(*Seen) {
		return func(s *Seen) { s.State.Attempt, s.State.Report = attempt, &r }
	}
	failed, done, oom := kinds[7], kinds[9], kinds[2]
	for _, c := range []struct {
		name string
		node int
		what func(*Seen)
		want How
		why  string
	}{
		{name: "nothing happens"},
		{name: "done on a node", node: 1, what: reports(4, done)},
		{name: "failed on a node", node: 1, what: reports(4, failed), want: Failed, why: "the command has ended on node 1"},
		{name: "out of memory on node 0", node: 0, what: reports(4, oom), want: Failed, why: "the command has ended on node 0"},
		{name: "could not be started", node: 2, what: reports(4, kinds[0]), want: Failed, why: "node 2"},
		{name: "could not be started, and headroom has left", node: 2, what: func(s *Seen) { reports(4, kinds[0])(s); s.State.Left = true }, want: Failed},
		{name: "failed in an earlier attempt", node: 1, what: reports(3, failed)},
		{name: "failed in an earlier job", node: 1, what: func(s *Seen) { reports(4, failed)(s); s.Member = "" }},
		{name: "asked to stop", node: 2, what: func(s *Seen) { s.State.Stopping = true }, want: Stopped, why: "node 2 was asked to stop"},
		{name: "asked to stop, in an earlier job", node: 2, what: func(s *Seen) { s.State.Stopping, s.Member = true, "" }},
		{name: "asked to stop, and has left", node: 2, what: func(s *Seen) { s.State.Stopping, s.State.Left = true, true }, want: Stopped},
		{name: "nearly too silent", node: 1, what: func(s *Seen) { s.Silent = times.Gone - 1 }},
		{name: "too silent", node: 1, what: func(s *Seen) { s.Silent = times.Gone }, want: Gone, why: "node 1 has not been heard of for 2m0s"},
		{name: "headroom has ended there", node: 1, what: func(s *Seen) { s.State.Left = true }, want: Gone, why: "headroom has ended on node 1"},
		{name: "started again there", node: 1, what: func(s *Seen) { s.State.Start = "z" }, want: Gone, why: "started again"},
		{name: "not there yet", node: 1, what: func(s *Seen) { *s = Seen{Silent: times.Join - 1} }},
		{name: "never came", node: 1, what: func(s *Seen) { *s = Seen{Silent: times.Join} }, want: Gone, why: "node 1 has not come within 10m0s"},
	} {
		all := []Seen{member(0, nil), member(1, nil), member(2, nil)}
		if c.what != nil {
			c.what(&all[c.node])
		}
		got := ending(4, all, times)
		if (got == nil) != (c.want == "") || got != nil && (got.How != c.want || got.Attempt != 4 || !strings.Contains(got.Why, c.why)) {
			t.Errorf("%s: %+v, want %s", c.name, got, c.want)
		}
	}
	all := []Seen{member(0, reports(4, failed)), member(1, func(s *Seen) { s.Silent = times.Gone }), member(2, nil)}
	if got := ending(4, all, times); got.How != Gone {
		t.Errorf("a loss of a node is reported as %+v", got)
	}
	all[2].State.Stopping = true
	if got := ending(4, all, times); got.How != Stopped {
		t.Errorf("a request to stop is reported as %+v", got)
	}
}

// TestSilence checks that only as much time counts as silence as is watched, and that any news ends it.
func TestSilence(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tick := time.Second
		var s Seen
		var beat, looks int64
		for range rapid.IntRange(1, 40).Draw(t, "looks") {
			elapsed := time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "elapsed"))
			if rapid.Bool().Draw(t, "news") {
				beat++
				looks = 0
			} else {
				looks++
			}
			s = s.see(State{Start: "x", Beat: beat}, elapsed, tick)
			if s.Silent > time.Duration(looks)*2*tick || looks == 0 && s.Silent != 0 {
				t.Fatalf("silent for %v after %d looks", s.Silent, looks)
			}
		}
	})
	stale := Seen{}.see(State{Start: "x", Beat: 7}, 0, time.Second)
	if stale.Lives {
		t.Error("a file that was there from the first look is taken for a living node's")
	}
	if s := stale.see(State{Start: "x", Beat: 7}, time.Second, time.Second); s.Lives || s.Silent != time.Second {
		t.Errorf("%+v", s)
	}
	if s := stale.see(State{Start: "x", Beat: 8}, time.Second, time.Second); !s.Lives || s.Silent != 0 {
		t.Errorf("%+v", s)
	}
}

// TestMembers checks whom node 0 counts: nobody in place of one who takes part, and nobody who does not fit.
func TestMembers(t *testing.T) {
	me := State{Version: version, Of: 3, Start: "a", Trains: "x", Members: []string{"a", "", ""}}
	said := func(start string) Seen {
		return Seen{State: State{Version: version, Of: 3, Start: start, Trains: "x"}}
	}
	taking := said("c")
	taking.Member = "b"
	other := said("d")
	other.State.Trains = "y"
	for _, c := range []struct {
		name string
		one  Seen
		want string
	}{
		{"nobody", Seen{}, ""}, {"one who comes", said("b"), "b"}, {"one who does not fit", other, ""}, {"another process of one who takes part", taking, ""},
	} {
		if got := members(me, []Seen{{Member: "a"}, c.one, {}}); got[1] != c.want || got[0] != "a" || got[2] != "" {
			t.Errorf("%s: %q", c.name, got)
		}
	}
}

func TestMisfit(t *testing.T) {
	me := State{Version: version, Node: 0, Of: 2, Trains: "batch 8"}
	for want, change := range map[string]func(*State){
		"":                            func(*State) {},
		"another version of headroom": func(s *State) { s.Version++ },
		"this is node 0 of 2, but node 1 (h) is one of 3":         func(s *State) { s.Of = 3 },
		"node 0 trains with batch 8, but node 1 (h) with batch 4": func(s *State) { s.Trains = "batch 4" },
	} {
		other := me
		other.Node, other.Host = 1, "h"
		change(&other)
		if got := misfit(me, other); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestFind(t *testing.T) {
	for _, c := range []struct{ env, line, given, want, job string }{
		{line: "python t.py", want: "alone"},
		{line: "torchrun --nproc-per-node 8 t.py", want: "alone"},
		{line: "torchrun --nnodes 2 --node-rank 1 t.py", want: "1/2"},
		{line: "torchrun --nnodes=2:2 --node_rank=0 --rdzv-id=j7 t.py", want: "0/2", job: "j7"},
		{line: "torchrun --nnodes 1:4 --node_rank=0 t.py", want: "alone"},
		{line: "torchrun --nnodes 1:4 --node_rank=0 t.py", given: "auto", want: "--nnodes 1:4: the number of nodes must be fixed"},
		{line: "torchrun --nnodes 2 --node-rank 2 t.py", want: "--node_rank says that this is node 2, but --nnodes 2 counts 2 nodes, from 0"},
		{line: "torchrun --nnodes 2 --node-rank x t.py", want: "--node_rank x: not a node's number"},
		{line: "torchrun --nnodes 2 t.py", want: "nothing says which of them this is"},
		{line: "torchrun --nnodes 2 t.py", given: "off", want: "alone"},
		{line: "torchrun --nnodes 2 t.py", given: "1/2", want: "1/2"},
		{line: "torchrun --nnodes 2 t.py", given: "1/3", want: "--node 1/3: --nnodes 2 says that there are 2 nodes"},
		{line: "torchrun --nnodes 1 t.py", given: "auto", want: "says that there is one node"},
		{env: "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_JOB_ID=17", line: "torchrun --nnodes 2 t.py", want: "1/2", job: "17"},
		{env: "SLURM_PROCID=9 SLURM_NODEID=1 SLURM_STEP_NUM_TASKS=16 SLURM_STEP_NUM_NODES=2 SLURM_JOB_ID=17 SLURM_STEP_ID=3", line: "torchrun --nnodes 2 t.py", want: "1/2", job: "17-3"},
		{env: "SLURM_PROCID=0 SLURM_NTASKS=2", line: "torchrun --nnodes 2 t.py", want: "nothing says which of them this is"}, // in the batch script, not under srun
		{env: "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2", line: "srun torchrun --nnodes 2 t.py", want: "alone"},
		{line: "mpirun -np 16 python t.py", want: "alone"},
		{env: "PET_NNODES=2 PET_NODE_RANK=1 PET_RDZV_ID=k", line: "torchrun t.py", want: "1/2", job: "k"},
		{env: "NODE_RANK=1", line: "accelerate launch --num_machines 2 --num_processes 16 t.py", want: "1/2"},
		{line: "accelerate launch --num_machines 2 --machine_rank 0 --num_processes 16 t.py", want: "0/2"},
		{line: "deepspeed --num_nodes 2 --num_gpus 8 t.py", want: "alone"}, // it starts the other node itself
		{line: "deepspeed --num_nodes 2 --num_gpus 8 --no_ssh --node_rank 1 t.py", want: "1/2"},
		{env: "SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4", line: "python t.py", want: "alone"}, // perhaps trainings of their own
		{env: "SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4", line: "python t.py", given: "auto", want: "3/4"},
		{env: "GROUP_RANK=1 GROUP_WORLD_SIZE=2", line: "python t.py", given: "auto", want: "1/2"},
		{env: "RANK=1 WORLD_SIZE=2", line: "python t.py", given: "auto", want: "1/2"},
		{line: "python t.py", given: "auto", want: "neither the command nor"},
		{line: "python t.py", given: "0/1", want: "--node 0/1: not a node"},
		{line: "python t.py", given: "2/2", want: "--node 2/2: not a node"},
		{line: "python t.py", given: "one", want: "--node one: not a node"},
		{line: "bash run.sh", given: "0/2", want: "0/2"},
	} {
		line := command.Line{Args: strings.Fields(c.line), Env: strings.Fields(c.env), Dir: "/"}
		p, together, err := Find(line, c.given)
		got := "alone"
		switch {
		case err != nil:
			got = err.Error()
		case together:
			got = strings.Join([]string{string(rune('0' + p.Node)), string(rune('0' + p.Of))}, "/")
		}
		if got != c.want && (err == nil || !strings.Contains(got, c.want)) || Job(line) != c.job {
			t.Errorf("%s %s --node %q: %s, job %q; want %s, %q", c.env, c.line, c.given, got, Job(line), c.want, c.job)
		}
	}
}
