package command

import (
	"strings"
	"testing"
)

func TestIsolated(t *testing.T) {
	for line, want := range map[string]string{
		"python train.py":                  "",
		"python -u train.py -I":            "",
		"python -I train.py":               "-I",
		"python3.11 -uE train.py":          "-uE",
		"/usr/bin/python3 -S -m pkg":       "-S",
		"python -W ignore -E x.py":         "-E",
		"python -WIgnore x.py":             "",
		"python -X importtime=S x.py":      "",
		"python -m torch.distributed -I":   "",
		"env -i python -s -P -OO x.py":     "",
		"torchrun --nproc-per-node 2 x.py": "",
		"sh -c python":                     "",
	} {
		if got := (Line{Args: strings.Fields(line)}).Isolated(); got != want {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
}
