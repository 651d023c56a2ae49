package job

import (
	"slices"
	"strings"
	"testing"
)

func TestContinued(t *testing.T) {
	type seen = map[string][]string
	for _, c := range []struct {
		what string
		env  []string
		seen seen
		want string // what is added
	}{
		{"nothing was open", nil, nil, ""},
		{"one run", nil, seen{"wandb": {"ab1"}}, "WANDB_RUN_ID=ab1 WANDB_RESUME=allow HEADROOM_TRACKED=wandb"},
		{"one in each", nil, seen{"wandb": {"ab1"}, "mlflow": {"0f"}}, "WANDB_RUN_ID=ab1 WANDB_RESUME=allow MLFLOW_RUN_ID=0f HEADROOM_TRACKED=wandb,mlflow"},
		{"several runs, of ranks or one after another", nil, seen{"wandb": {"ab1", "ab2"}}, ""},
		{"one that cannot be continued, offline or of a sweep", nil, seen{"wandb": {""}}, ""},
		{"one of two that cannot", nil, seen{"wandb": {"ab1", ""}}, ""},
		{"an id that is none", nil, seen{"wandb": {"a\nb"}}, ""},
		{"the user's own id", []string{"WANDB_RUN_ID=mine"}, seen{"wandb": {"mine"}}, ""},
		{"the user's own way to resume", []string{"WANDB_RESUME=never"}, seen{"wandb": {"ab1"}}, ""},
		{"a sweep", []string{"WANDB_SWEEP_ID=s"}, seen{"wandb": {"ab1"}}, ""},
		{"the user's own id of the other", []string{"MLFLOW_RUN_ID=mine"}, seen{"wandb": {"ab1"}, "mlflow": {"0f"}}, "WANDB_RUN_ID=ab1 WANDB_RESUME=allow HEADROOM_TRACKED=wandb"},
		{"settings that decide nothing", []string{"WANDB_PROJECT=p"}, seen{"wandb": {"ab1"}}, "WANDB_RUN_ID=ab1 WANDB_RESUME=allow HEADROOM_TRACKED=wandb"},
	} {
		env := append([]string{"PATH=/bin"}, c.env...)
		given := slices.Clone(env)
		got := continued(env, c.seen)
		if strings.Join(got, " ") != strings.TrimSpace(strings.Join(given, " ")+" "+c.want) || !slices.Equal(env, given) {
			t.Errorf("%s: %q", c.what, got)
		}
	}
}
