package nodes

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"headroom/wrap/command"
)

// Place is which of the nodes of a run this one is.
type Place struct{ Node, Of int }

// These values of a user's flag stand for what the command and its environment say, and for a
// headroom that runs its command alone.
const (
	Auto = "auto"
	Off  = "off"
)

// Find returns which node this is. given is what the user says: R/N, [Auto], [Off] or "". together is false
// if this headroom runs its command alone. With "", that is so unless the command's own launcher
// says that it starts only this node's part of several.
//
// A process for each task without a launcher, as in srun headroom run -- python, may also be one of
// several trainings that have nothing to do with each other. So that needs [Auto].
func Find(c command.Line, given string) (p Place, together bool, err error) {
	if given == Off {
		return Place{}, false, nil
	}
	launch, _ := command.Peel(c) // what cannot be read says nothing about nodes
	getenv := func(name string) string { v, _ := launch.Getenv(c, name); return v }
	of, what, err := machines(c, launch)
	if err != nil && given == "" {
		return Place{}, false, nil // elastic: the number of nodes is not fixed
	}
	if err != nil {
		return Place{}, true, err
	}
	if given != "" && given != Auto {
		p, err := parse(given, of, what)
		return p, true, err
	}
	if of < 2 && given == "" {
		return Place{}, false, nil
	}
	if of == 0 {
		return engine(getenv)
	}
	if of < 2 {
		return Place{}, true, fmt.Errorf("--node auto: %s says that there is one node", what)
	}
	rank, from, err := rankIn(launch, getenv, of)
	if err == nil && rank >= of {
		err = fmt.Errorf("%s says that this is node %d, but %s counts %d nodes, from 0", from, rank, what, of)
	}
	return Place{rank, of}, true, err
}

// parse reads R/N. The command says, in what, that there are so many nodes, if of is not 0.
func parse(given string, of int, what string) (Place, error) {
	r, n, _ := strings.Cut(given, "/")
	node, err1 := strconv.Atoi(r)
	all, err2 := strconv.Atoi(n)
	switch {
	case err1 != nil || err2 != nil || node < 0 || all < 2 || node >= all:
		return Place{}, fmt.Errorf("--node %s: not a node; allowed: R/N, as in 0/2 and 1/2 for two nodes, auto or off", given)
	case of > 0 && of != all:
		return Place{}, fmt.Errorf("--node %s: %s says that there are %d nodes", given, what, of)
	}
	return Place{node, all}, nil
}

// machines returns how many nodes the command's launcher says that there are, and which of its options
// says so. It returns 0 if the launcher does not say, or if it starts the parts of other nodes, too. An
// error says that the number is not fixed.
func machines(c command.Line, l command.Launch) (of int, what string, err error) {
	has := func(name string) bool { return slices.Contains(l.Layers, name) }
	if has("srun") || has("mpirun") || has("mpiexec") {
		return 0, "", nil
	}
	count := func(name string) (int, string, error) {
		o, given := l.Option(name)
		what, value := "--"+name, o.Value
		if !given {
			what = "PET_" + strings.ToUpper(name)
			value, given = l.Getenv(c, what)
		}
		if !given {
			return 0, "", nil
		}
		low, high, elastic := strings.Cut(value, ":")
		if elastic && low != high {
			return 0, "", fmt.Errorf("%s %s: the number of nodes must be fixed for headroom on each of them", what, value)
		}
		return command.Number(low), what + " " + value, nil
	}
	switch {
	case has("torchrun"):
		return count("nnodes")
	case has("accelerate launch"):
		return count("num_machines")
	case has("deepspeed"):
		if _, local := l.Option("node_rank"); local { // otherwise it starts the other nodes' parts itself
			return count("num_nodes")
		}
	}
	return 0, "", nil
}

// rankIn returns which of several nodes this is, and what says so.
func rankIn(l command.Launch, getenv func(string) string, of int) (rank int, from string, err error) {
	for _, name := range []string{"node_rank", "machine_rank"} {
		if o, given := l.Option(name); given {
			if rank, err = strconv.Atoi(o.Value); err != nil || rank < 0 {
				err = fmt.Errorf("--%s %s: not a node's number", name, o.Value)
			}
			return rank, "--" + name, err
		}
	}
	names := []string{"PET_NODE_RANK", "NODE_RANK", "GROUP_RANK"}
	if getenv("SLURM_STEP_NUM_TASKS") == fmt.Sprint(of) {
		names = append(names, "SLURM_PROCID")
	} else if getenv("SLURM_STEP_NUM_NODES") == fmt.Sprint(of) {
		names = append(names, "SLURM_NODEID")
	}
	for _, name := range append(names, "JOB_COMPLETION_INDEX") {
		if rank, err := strconv.Atoi(getenv(name)); err == nil && rank >= 0 {
			return rank, name, nil
		}
	}
	return 0, "", errors.New("the command runs on several nodes, but nothing says which of them this is")
}

// engine returns which of several processes this is, according to what has started it.
func engine(getenv func(string) string) (Place, bool, error) {
	for _, names := range [][2]string{
		{"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"}, {"GROUP_RANK", "GROUP_WORLD_SIZE"}, {"PET_NODE_RANK", "PET_NNODES"},
		{"NODE_RANK", "NNODES"}, {"RANK", "WORLD_SIZE"},
	} {
		rank, err1 := strconv.Atoi(getenv(names[0]))
		of, err2 := strconv.Atoi(getenv(names[1]))
		if err1 == nil && err2 == nil && rank >= 0 && rank < of && of > 1 {
			return Place{rank, of}, true, nil
		}
	}
	return Place{}, true, errors.New("--node auto: neither the command nor Slurm's or another engine's variables say which of several nodes this is")
}

// Job returns a name for the job that is the same on all its nodes, and remains the same if the engine
// starts the job again; "" if nothing gives one.
func Job(c command.Line) string {
	if id, _ := c.Getenv("SLURM_JOB_ID"); id != "" {
		if step, _ := c.Getenv("SLURM_STEP_ID"); step != "" && step != "0" {
			return id + "-" + step
		}
		return id
	}
	launch, _ := command.Peel(c)
	if o, given := launch.Option("rdzv_id"); given && o.Value != "none" {
		return o.Value
	}
	id, _ := launch.Getenv(c, "PET_RDZV_ID")
	return id
}

// Alone reports whether the command starts a single process by itself, with no launcher. Then every
// node is a rank, unless the environment says how many there are.
func Alone(c command.Line) bool {
	launch, err := command.Peel(c)
	_, world := launch.Getenv(c, "WORLD_SIZE")
	return err == nil && launch.Alone() && !world
}
