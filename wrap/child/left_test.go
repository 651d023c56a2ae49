package child

import (
	"reflect"
	"testing"
)

func TestLeftText(t *testing.T) {
	all := []Left{{PID: 1, Name: "a"}, {PID: 2, Name: "b"}, {PID: 3, Name: "c"}, {PID: 4, Name: "d"}, {PID: 5, Name: "e"}, {PID: 6, Name: "f"}, {PID: 7, Name: "g"}}
	for n, want := range map[int]string{
		1: "the command left a process running: a (pid 1)",
		2: "the command left 2 processes running: a (pid 1) and b (pid 2)",
		5: "the command left 5 processes running: a (pid 1), b (pid 2), c (pid 3), d (pid 4) and e (pid 5)",
		7: "the command left 7 processes running: a (pid 1), b (pid 2), c (pid 3), d (pid 4), e (pid 5) and 2 more",
	} {
		if got := LeftRunning(all[:n]); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestSplit checks that what a process has started is in the way with it, in whatever order the
// processes come, and that its parent is not.
func TestSplit(t *testing.T) {
	all := []Left{{PID: 2, parent: 9}, {PID: 5, parent: 1}, {PID: 7, parent: 5}, {PID: 9, parent: 7}}
	inTheWay, others, why := Split(all, func(l Left) string {
		if l.PID == 7 {
			return "a GPU"
		}
		return ""
	})
	if !reflect.DeepEqual(inTheWay, []Left{all[0], all[2], all[3]}) || !reflect.DeepEqual(others, []Left{all[1]}) || why != "a GPU" {
		t.Errorf("%v, %v, %q", inTheWay, others, why)
	}
}
