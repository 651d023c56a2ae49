package main

import (
	"encoding/json"
	"net/url"
	"path/filepath"
	"regexp"
	"testing"

	"headroom/job"
	"headroom/worker"
)

// TestSARIF checks that what is written has the shape that SARIF 2.1.0 requires: the properties that its schema marks
// as required, their types, the values of its enumerations, and references that lead somewhere.
func TestSARIF(t *testing.T) {
	for name, reading := range map[string]job.Reading{
		"nothing": {},
		"unread":  {Unread: "no script"},
		"found": {Findings: []worker.Finding{
			{Rule: "summed-tensor", File: "train.py", Line: 3, Why: "a sum", Instead: "total += loss.item()"},
			{Rule: "summed-tensor", File: "a b/ü#.py", Line: 1, Why: "a sum", Instead: "x"},
			{Rule: "no-zero-grad", File: "/elsewhere/it is.py", Line: 9, Why: "none", Instead: "x"},
		}},
	} {
		text, err := sarif(reading, "/work/my folder", "1.2.3")
		if err != nil {
			t.Fatal(err)
		}
		var log map[string]any
		if err := json.Unmarshal(text, &log); err != nil {
			t.Fatal(err)
		}
		if log["version"] != "2.1.0" || log["$schema"] == "" {
			t.Errorf("%s: version %v, schema %v", name, log["version"], log["$schema"])
		}
		run := first(t, log["runs"])
		driver := within(t, run, "tool", "driver")
		if driver["name"] != "headroom" || driver["version"] != "1.2.3" {
			t.Errorf("%s: driver %v", name, driver)
		}
		rules := map[any]bool{}
		for _, rule := range list(t, driver["rules"]) {
			id, isText := rule["id"].(string)
			if rules[id] || !isText {
				t.Errorf("%s: rules %v", name, driver["rules"])
			}
			rules[id] = true
		}
		invocation := first(t, run["invocations"])
		if invocation["executionSuccessful"] != (reading.Unread == "") {
			t.Errorf("%s: invocation %v", name, invocation)
		}
		if reading.Unread != "" && within(t, first(t, invocation["toolExecutionNotifications"]), "message")["text"] != reading.Unread {
			t.Errorf("%s: invocation %v", name, invocation)
		}
		results := list(t, run["results"])
		if len(results) != len(reading.Findings) {
			t.Errorf("%s: %d results", name, len(results))
		}
		for i, result := range results {
			f := reading.Findings[i]
			at := within(t, first(t, result["locations"]), "physicalLocation")
			if result["level"] != "warning" || !rules[result["ruleId"]] || within(t, result, "message")["text"] != f.Why+"; instead: "+f.Instead ||
				within(t, at, "region")["startLine"] != float64(f.Line) {
				t.Errorf("%s: result %v", name, result)
			}
			artifact := within(t, at, "artifactLocation")
			if base, given := artifact["uriBaseId"].(string); given {
				if got := uriPath(t, within(t, run, "originalUriBaseIds", base)["uri"], artifact["uri"]); got != filepath.Join("/work/my folder", f.File) {
					t.Errorf("%s: %v is %s", name, artifact, got)
				}
			} else if got := uriPath(t, "", artifact["uri"]); got != f.File {
				t.Errorf("%s: %v is %s", name, artifact, got)
			}
		}
	}
}

// uriPath returns the path of a file: URI, which may be relative to another one that ends with a slash.
func uriPath(t *testing.T, base, uri any) string {
	t.Helper()
	text, isText := uri.(string)
	from, isBase := base.(string)
	to, err := url.Parse(from)
	if err == nil {
		to, err = to.Parse(text)
	}
	if err != nil || !isText || !isBase || to.Scheme != "file" || from != "" && from[len(from)-1] != '/' || !regexp.MustCompile(`^[!-~]+$`).MatchString(text) {
		t.Fatalf("%v in %v: %v", uri, base, err)
	}
	return to.Path
}

func list(t *testing.T, v any) (all []map[string]any) {
	t.Helper()
	elements, is := v.([]any)
	if !is {
		t.Fatalf("%v is no array", v)
	}
	for _, e := range elements {
		object, is := e.(map[string]any)
		if !is {
			t.Fatalf("%v is no object", e)
		}
		all = append(all, object)
	}
	return all
}

func first(t *testing.T, v any) map[string]any {
	t.Helper()
	all := list(t, v)
	if len(all) != 1 {
		t.Fatalf("%d elements, want 1", len(all))
	}
	return all[0]
}

func within(t *testing.T, v map[string]any, names ...string) map[string]any {
	t.Helper()
	for _, name := range names {
		inner, is := v[name].(map[string]any)
		if !is {
			t.Fatalf("%s of %v is no object", name, v)
		}
		v = inner
	}
	return v
}
