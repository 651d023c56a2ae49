package main

import (
	"encoding/json"
	"net/url"
	"path/filepath"
	"slices"

	"headroom/job"
)

// The parts of SARIF 2.1.0 (docs.oasis-open.org/sarif/sarif/v2.1.0) that are used.
type (
	sarifLog struct {
		Schema  string     `json:"$schema"`
		Version string     `json:"version"`
		Runs    []sarifRun `json:"runs"`
	}
	sarifRun struct {
		Tool struct {
			Driver sarifDriver `json:"driver"`
		} `json:"tool"`
		Invocations []sarifInvocation `json:"invocations"`
		Bases       map[string]any    `json:"originalUriBaseIds"`
		Results     []sarifResult     `json:"results"` // empty, not null: nothing was found
	}
	sarifDriver struct {
		Name    string      `json:"name"`
		Version string      `json:"version"`
		Rules   []sarifRule `json:"rules"`
	}
	sarifRule struct {
		ID string `json:"id"`
	}
	sarifInvocation struct {
		Successful    bool                `json:"executionSuccessful"`
		Notifications []sarifNotification `json:"toolExecutionNotifications,omitempty"`
	}
	sarifNotification struct {
		Level   string       `json:"level"`
		Message sarifMessage `json:"message"`
	}
	sarifMessage struct {
		Text string `json:"text"`
	}
	sarifResult struct {
		RuleID    string          `json:"ruleId"`
		Level     string          `json:"level"`
		Message   sarifMessage    `json:"message"`
		Locations []sarifLocation `json:"locations"`
	}
	sarifLocation struct {
		Physical struct {
			Artifact struct {
				URI  string `json:"uri"`
				Base string `json:"uriBaseId,omitempty"`
			} `json:"artifactLocation"`
			Region struct {
				StartLine int `json:"startLine"`
			} `json:"region"`
		} `json:"physicalLocation"`
	}
)

// folder is SARIF's name for the folder in which the command runs.
const folder = "FOLDER"

// sarif returns what was read as a SARIF log. dir is the folder in which the command runs, and version is headroom's.
func sarif(reading job.Reading, dir, version string) ([]byte, error) {
	run := sarifRun{Results: []sarifResult{}, Bases: map[string]any{folder: map[string]string{"uri": fileURI(dir) + "/"}}}
	run.Tool.Driver = sarifDriver{Name: "headroom", Version: version, Rules: []sarifRule{}}
	invocation := sarifInvocation{Successful: reading.Unread == ""}
	if reading.Unread != "" {
		invocation.Notifications = []sarifNotification{{"warning", sarifMessage{reading.Unread}}}
	}
	run.Invocations = []sarifInvocation{invocation}
	for _, f := range reading.Findings {
		if rule := (sarifRule{f.Rule}); !slices.Contains(run.Tool.Driver.Rules, rule) {
			run.Tool.Driver.Rules = append(run.Tool.Driver.Rules, rule)
		}
		var at sarifLocation
		at.Physical.Region.StartLine = f.Line
		if filepath.IsAbs(f.File) {
			at.Physical.Artifact.URI = fileURI(f.File)
		} else {
			at.Physical.Artifact.URI, at.Physical.Artifact.Base = (&url.URL{Path: filepath.ToSlash(filepath.Clean(f.File))}).EscapedPath(), folder
		}
		run.Results = append(run.Results, sarifResult{f.Rule, "warning", sarifMessage{f.Why + "; instead: " + f.Instead}, []sarifLocation{at}})
	}
	log := sarifLog{"https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json", "2.1.0", []sarifRun{run}}
	text, err := json.MarshalIndent(log, "", "  ")
	return append(text, '\n'), err
}

func fileURI(path string) string {
	return (&url.URL{Scheme: "file", Path: filepath.ToSlash(path)}).String()
}
