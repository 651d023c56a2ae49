package job

import (
	"slices"
	"strings"
)

// trackers has, for each tracker, the variable that names the run to continue, what else continuing takes, and the variables with which the
// user has decided about it.
var trackers = []struct {
	name, id string
	with     []string
	theirs   []string
}{
	{"wandb", "WANDB_RUN_ID", []string{"WANDB_RESUME=allow"}, []string{"WANDB_RUN_ID", "WANDB_RESUME", "WANDB_RESUME_FROM", "WANDB_FORK_FROM", "WANDB_SWEEP_ID"}},
	{"mlflow", "MLFLOW_RUN_ID", nil, []string{"MLFLOW_RUN_ID"}},
}

// continued returns env with the variables by which the next attempt continues the runs that the last one had open, so that
// its curve is one. It leaves a tracker alone in which the last attempt had more than one run, or one that cannot be continued, and one about which the
// user's own environment decides: a run that is continued by mistake is worse than two halves.
func continued(env []string, seen map[string][]string) []string {
	var given []string
	for _, t := range trackers {
		ids := seen[t.name]
		if len(ids) != 1 || !isRun(ids[0]) || slices.ContainsFunc(env, func(set string) bool {
			name, _, _ := strings.Cut(set, "=")
			return slices.Contains(t.theirs, name)
		}) {
			continue
		}
		env = append(append(env[:len(env):len(env)], t.id+"="+ids[0]), t.with...)
		given = append(given, t.name)
	}
	if len(given) == 0 {
		return env
	}
	return append(env, "HEADROOM_TRACKED="+strings.Join(given, ",")) // the process forgets them once its run is open
}

// isRun reports whether id may name a run of a tracker.
func isRun(id string) bool {
	return id != "" && len(id) <= 128 && strings.Trim(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") == ""
}
