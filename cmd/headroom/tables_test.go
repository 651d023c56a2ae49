package main

import (
	"fmt"
	"strings"
	"testing"

	"headroom/search"
)

func TestByMicro(t *testing.T) {
	var rows []string
	for _, p := range byMicro([]search.Probe{
		{N: 8, Fits: true, Peak: 30}, {N: 4, Fits: true, Peak: 20}, {N: 8, Fits: true, Peak: 32},
		{N: 8, Peak: 31}, {N: 16, Peak: 60}, {N: 16, Peak: 64},
	}) {
		rows = append(rows, fmt.Sprint(p.N, p.Fits, int64(p.Peak)))
	}
	if got := strings.Join(rows, ", "); got != "4 true 20, 8 true 32, 8 false 31, 16 false 64" {
		t.Error(got)
	}
}
