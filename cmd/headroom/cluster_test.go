package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"headroom/cmd/headroom/ui"
)

// TestEnginesKnowTheStatuses checks the exit statuses in the manifests of docs/cluster against headroom's table. An engine
// may start again only what the same command continues, and has to after an interrupt; it may give up only after
// the others, and those by which a shell says that there is no such command.
func TestEnginesKnowTheStatuses(t *testing.T) {
	var continued, ended []int
	for _, e := range ui.Exits {
		switch {
		case strings.Contains(e.Means, "the same command continues the run"):
			continued = append(continued, e.Code)
		case e.Code != 0:
			ended = append(ended, e.Code)
		}
	}
	again := func(code int) bool {
		return slices.Contains(continued, code) || code > ui.Signalled && code < ui.Signalled+65
	}
	if !again(75) || !slices.Contains(ended, 2) {
		t.Fatalf("the table has changed: %v, %v", continued, ended)
	}
	counted := map[string]int{}
	visit := func(name string, at map[string]any) {
		action, _ := at["action"].(string)
		for key, value := range at {
			codes := numbers(value)
			switch {
			case key == "onExitCodes" && action == "FailJob":
				if counted["gives up"]++; !slices.Contains(codes, 2) {
					t.Errorf("%s: %v is without 2", name, codes)
				}
				for _, code := range codes {
					if again(code) || !slices.Contains(append([]int{126, 127}, ended...), code) {
						t.Errorf("%s gives up after %d", name, code)
					}
				}
			case key == "exitCodes" && action == "Restart", key == "recover_on_exit_codes":
				if counted["starts again"]++; !slices.Contains(codes, 75) {
					t.Errorf("%s: %v is without 75", name, codes)
				}
				for _, code := range codes {
					if !again(code) {
						t.Errorf("%s starts again after %d", name, code)
					}
				}
			case strings.Contains(strings.ToLower(key), "exit"):
				t.Errorf("%s: %s is not checked", name, key)
			}
		}
		if at["name"] == "HEADROOM_TERMINATION_LOG" {
			if counted["messages"]++; at["value"] != "/dev/termination-log" { // Kubernetes' own terminationMessagePath
				t.Errorf("%s: %v", name, at)
			}
		}
	}
	names, err := filepath.Glob(filepath.Join("..", "..", "docs", "cluster", "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for all := yaml.NewDecoder(bytes.NewReader(text)); ; {
			var document any
			if err := all.Decode(&document); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			walk(document, func(at map[string]any) { visit(filepath.Base(name), at) })
		}
	}
	if counted["gives up"] != 3 || counted["starts again"] != 2 || counted["messages"] != 3 {
		t.Errorf("%v", counted)
	}
}

// walk calls visit with every mapping in a document.
func walk(value any, visit func(map[string]any)) {
	switch v := value.(type) {
	case map[string]any:
		visit(v)
		for _, inner := range v {
			walk(inner, visit)
		}
	case []any:
		for _, inner := range v {
			walk(inner, visit)
		}
	}
}

// numbers returns the numbers in a list, or in the list called values.
func numbers(value any) (found []int) {
	if in, ok := value.(map[string]any); ok {
		value = in["values"]
	}
	list, _ := value.([]any)
	for _, n := range list {
		if n, ok := n.(int); ok {
			found = append(found, n)
		}
	}
	return found
}
