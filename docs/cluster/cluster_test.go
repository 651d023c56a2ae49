// Package cluster is the manifests of this folder, decoded as the engines decode them. It is a module of its own: what
// Kubernetes' types need is no dependency of headroom's.
package cluster

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/santhosh-tekuri/jsonschema/v6"
	batch "k8s.io/api/batch/v1"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	"sigs.k8s.io/yaml"
)

// decoded returns a document as the type that its apiVersion and kind name. No field may be unknown or given twice.
func decoded(document []byte) (any, error) {
	var head struct{ APIVersion, Kind string }
	if err := yaml.Unmarshal(document, &head); err != nil {
		return nil, err
	}
	kinds := map[string]any{
		"batch/v1 Job":                                  &batch.Job{},
		"jobset.x-k8s.io/v1alpha2 JobSet":               &jobset.JobSet{},
		"trainer.kubeflow.org/v1alpha1 TrainJob":        &trainer.TrainJob{},
		"trainer.kubeflow.org/v1alpha1 TrainingRuntime": &trainer.TrainingRuntime{},
	}
	object, known := kinds[head.APIVersion+" "+head.Kind]
	if !known {
		return nil, fmt.Errorf("%s %s is not known", head.APIVersion, head.Kind)
	}
	return object, yaml.UnmarshalStrict(document, object)
}

// documents returns the documents of the manifests of Kubernetes in this folder, by file and number.
func documents(t *testing.T) map[string][]byte {
	t.Helper()
	found := map[string][]byte{}
	names, err := filepath.Glob("*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if name == "sky.yaml" {
			continue
		}
		for i, document := range bytes.Split(text, []byte("\n---\n")) {
			found[fmt.Sprint(name, " ", i+1)] = document
		}
	}
	return found
}

func TestManifests(t *testing.T) {
	all := documents(t)
	if len(all) != 4 {
		t.Errorf("%d documents", len(all))
	}
	for name, document := range all {
		if _, err := decoded(document); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	object, err := decoded(all["job.yaml 1"])
	if err != nil {
		t.Fatal(err)
	}
	if rules := object.(*batch.Job).Spec.Template.Spec.Containers[0].RestartPolicyRules; len(rules) != 1 || rules[0].ExitCodes == nil {
		t.Errorf("%+v", rules)
	}
}

// TestStrict checks that a mistake in a manifest is seen: a field that no type has, wherever it is.
func TestStrict(t *testing.T) {
	for name, document := range documents(t) {
		for _, field := range []string{"containers:", "backoffLimit:", "trainer:"} {
			wrong := strings.Replace(string(document), field, "un"+field, 1)
			if _, err := decoded([]byte(wrong)); wrong != string(document) && err == nil {
				t.Errorf("%s: un%s is accepted", name, field)
			}
		}
	}
}

// TestSkyPilot checks SkyPilot's task against the schema that SkyPilot 0.14.1 checks it with. It has been put together of
// those of a task, its resources and its storage, from sky.utils.schemas.
func TestSkyPilot(t *testing.T) {
	schema, err := jsonschema.NewCompiler().Compile("testdata/sky-task-0.14.1.json")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("sky.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for change, wrong := range map[string]bool{"": false, "75": true, "job_recovery": true, "file_mounts": true, "mode": true} {
		changed := strings.Replace(string(text), change, "9"+change, 1)
		if change == "" {
			changed = string(text)
		}
		var task any
		if err := yaml.Unmarshal([]byte(changed), &task); err != nil {
			t.Fatal(err)
		}
		if err := schema.Validate(task); (err != nil) != wrong {
			t.Errorf("%q: %v", change, err)
		}
	}
}
