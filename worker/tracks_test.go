package worker

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
)

// TestTracks checks that the ids of runs in trackers are kept, each once, of the trackers that were asked for, and not without end.
func TestTracks(t *testing.T) {
	l := begun(t, &books{}, Armed)
	if l.o.Trackers = []string{"wandb"}; !slices.Contains(l.Env(nil), "HEADROOM_TRACKERS=wandb") {
		t.Error("the processes do not know which trackers to look at")
	}
	c := dial(t, l)
	c.send(helloLine(0, 1))
	c.read()
	for _, line := range []string{`"tracker":"wandb","run":"ab1"`, `"tracker":"wandb","run":"ab1"`, `"tracker":"wandb","run":""`, `"tracker":"other","run":"x"`} {
		c.send(`{"type":"tracks",` + line + `}`)
	}
	if seen := ended(t, l); !reflect.DeepEqual(seen.Tracked, map[string][]string{"wandb": {"ab1", ""}}) {
		t.Error(seen.Tracked)
	}
	many := begun(t, &books{}, Armed)
	many.o.Trackers = []string{"wandb"}
	for i := range 100 {
		many.tracks("wandb", fmt.Sprint(i))
	}
	if seen := ended(t, many); len(seen.Tracked["wandb"]) != trackedMost {
		t.Error(seen.Tracked)
	}
}
