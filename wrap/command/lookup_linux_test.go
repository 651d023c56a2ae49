package command

import (
	"strings"
	"testing"
)

// TestLastOfSeveral checks that if a variable is given twice, the last one counts.
func TestLastOfSeveral(t *testing.T) {
	c := Line{Env: []string{"A=1", "B=2", "A=3"}}
	if got := c.Environment(); strings.Join(got, " ") != "B=2 A=3" {
		t.Errorf("%q", got)
	}
}
