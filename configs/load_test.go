package configs

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// good is a valid configuration. Tests change it or add to it. It has ten lines, so a
// line that a test adds is line 11.
const good = `model:
  kind: gpt
  width: 64
data:
  kind: text
  path: book.txt
batch:
  effective: 32
train:
  steps: 100
`

// spoilt returns good with the text old replaced with now.
func spoilt(old, now string) string {
	if !strings.Contains(good, old) {
		panic(old)
	}
	return strings.Replace(good, old, now, 1)
}

// expect compares the problems that parse reports, one per line, with want.
func expect(t *testing.T, content string, sets, want []string) {
	t.Helper()
	var got []string
	if _, err := parse([]byte(content), "my.yaml", sets); err != nil {
		got = strings.Split(err.Error(), "\n")
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestBadFiles(t *testing.T) {
	for _, test := range []struct {
		name    string
		content string
		want    string
	}{
		{"empty", "", "my.yaml: the file is empty; start from a preset: gpt, mlp-tight or mnist"},
		{"comments alone", "# nothing\n", "my.yaml: the file is empty; start from a preset: gpt, mlp-tight or mnist"},
		{"words", "just words", "my.yaml:1: just words: not a mapping; write keys and values, as in seed: 1"},
		{"list", "- a\n- b\n", "my.yaml:1: [a, b]: not a mapping; write keys and values, as in seed: 1"},
		{"tab", "model:\n\tkind: gpt\n", "my.yaml:2: invalid YAML: found character that cannot start any token; indent with spaces, not tabs, and quote values that begin with %, @ or `"},
		{"unclosed", "model: {kind: gpt\n", "my.yaml:1: invalid YAML: did not find expected ',' or '}'"},
		{"binary", "\x00", "my.yaml: invalid YAML: control characters are not allowed"},
		{"two documents", good + "---\nseed: 2\n", "my.yaml: more than one document, or text after the end of the first; a configuration is a single document"},
		{"rubbish behind", good + "...\nx", "my.yaml: more than one document, or text after the end of the first; a configuration is a single document"},
		{"group twice", good + "model:\n  kind: mlp\n", "my.yaml:11: model: {kind: mlp}: given twice, first on line 1"},
		{"key twice", good + "seed: 1\nseed: 2\n", "my.yaml:12: seed: 2: given twice, first on line 11"},
		{"tag", spoilt("64", "!!int 64"), "my.yaml:3: tag !!int: not allowed; text that begins with ! needs quotes"},
		{"alias", spoilt("book.txt", "*go"), "my.yaml: invalid YAML: unknown anchor 'go' referenced"},
		{"key that is a list", good + "? [a, b]\n: 1\n", "my.yaml:11: [a, b]: not a key"},
		{"merge", good + "<<: {a: 1}\n", "my.yaml:11: <<: {a: 1}: unknown key; the known keys are name, seed, model, data, batch, optimizer, schedule, train, device, memory, output and notify"},

		{"misspelt key", spoilt("width", "widht"), "my.yaml:3: model.widht: 64: unknown key; did you mean model.width?"},
		{"misspelt group", good + "modell:\n  kind: gpt\n", "my.yaml:11: modell: {kind: gpt}: unknown key; did you mean model?"},
		{"key of another group", good + "lr: 3\n", "my.yaml:11: lr: 3: unknown key; did you mean optimizer.lr?"},
		{"key like no other", good + "device: {zebra: 1}\n", "my.yaml:11: device.zebra: 1: unknown key; device has kind, ordinal, precision, capacity and squeeze"},
		{"dotted key", good + "optimizer.lr: 4\n", "my.yaml:11: optimizer.lr: 4: write lr under optimizer"},
		{"group with a value", good + "device: host\n", "my.yaml:11: device: host: not a mapping; write keys under it: kind, ordinal, precision, capacity and squeeze"},
		{"group without keys", good + "device:\n", "my.yaml:11: device: not a mapping; write keys under it: kind, ordinal, precision, capacity and squeeze"},

		{"word for a number", spoilt("64", "two"), "my.yaml:3: model.width: two: not a whole number; allowed: a whole number, 1 to 1000000"},
		{"quotes for a number", spoilt("64", `"64"`), `my.yaml:3: model.width: "64": text, not a whole number; allowed: a whole number, 1 to 1000000`},
		{"fraction", spoilt("64", "6.4"), "my.yaml:3: model.width: 6.4: not a whole number; allowed: a whole number, 1 to 1000000"},
		{"zero", spoilt("64", "0"), "my.yaml:3: model.width: 0: out of range; allowed: a whole number, 1 to 1000000"},
		{"huge", spoilt("64", "99999999999999999999"), "my.yaml:3: model.width: 99999999999999999999: out of range; allowed: a whole number, 1 to 1000000"},
		{"nothing", spoilt(" 64", ""), "my.yaml:3: model.width: no value, expected a whole number; allowed: a whole number, 1 to 1000000"},
		{"list for a number", spoilt("64", "[64]"), "my.yaml:3: model.width: [64]: a list, not a whole number; allowed: a whole number, 1 to 1000000"},
		{"mapping for a word", spoilt("book.txt", "{a: b}"), "my.yaml:6: data.path: {a: b}: a mapping, not text; allowed: text"},
		{"unknown word", spoilt("gpt", "gtp"), "my.yaml:2: model.kind: gtp: not known; allowed: gpt or mlp"},
		{"no unit", good + "device: {capacity: 24}\n", "my.yaml:11: device.capacity: 24: not a size; allowed: auto, or a size of at least 1B with its unit, such as 512MiB or 24GiB"},
		{"not finite", good + "optimizer: {lr: nan}\n", "my.yaml:11: optimizer.lr: nan: not a number; allowed: a number, above 0"},
		{"beyond a float", good + "optimizer: {lr: 1e999}\n", "my.yaml:11: optimizer.lr: 1e999: out of range; allowed: a number, above 0"},
		{"at the bound", good + "optimizer: {beta1: 1}\n", "my.yaml:11: optimizer.beta1: 1: out of range; allowed: a number, above 0 and below 1"},
		{"yes", good + "batch2: 1\n", "my.yaml:11: batch2: 1: unknown key; did you mean batch?"},
		{"all of it", good + "memory: {headroom: 100%}\n", "my.yaml:11: memory.headroom: 100%: out of range; allowed: 0% to 90%"},
		{"percent forgotten", good + "memory: {headroom: 8}\n", "my.yaml:11: memory.headroom: 8: out of range; allowed: 0% to 90%"},
		{"nearly all of it", good + "memory: {headroom: 99.999999%}\n", "my.yaml:11: memory.headroom: 99.999999%: out of range; allowed: 0% to 90%"},
		{"a little too much of it", good + "memory: {headroom: 0.91}\n", "my.yaml:11: memory.headroom: 0.91: out of range; allowed: 0% to 90%"},
		{"word for a list", good + "memory: {allow: wait}\n", "my.yaml:11: memory.allow: wait: not a list; allowed: a list of recompute, relaunch and wait"},
		{"unknown item", good + "memory: {allow: [hope]}\n", "my.yaml:11: memory.allow: [hope]: hope: not known; allowed: a list of recompute, relaunch and wait"},
		{"item twice", good + "memory: {allow: [wait, wait]}\n", `my.yaml:11: memory.allow: [wait, wait]: "wait" is given twice; allowed: a list of recompute, relaunch and wait`},
		{"a way out", good + "name: ../x\n", "my.yaml:11: name: ../x: not a valid name for a folder; allowed: 1 to 100 letters, digits, dots, dashes and underscores, not starting with . or -"},
		{"pattern", good + "seed: 2\nname: x\noutput: {dir: ''}\n", `my.yaml:13: output.dir: "": empty; allowed: text`},
		{"squeeze: unknown key", good + "device: {squeeze: [{from: 1, too: 5}]}\n", `my.yaml:11: device.squeeze: [{from: 1, too: 5}]: item 1: "too" is not a known key, or is given twice; allowed: a list of {from: steps, to: steps, take: size}, where "to" is greater than "from"`},
		{"squeeze: no size", good + "device: {squeeze: [{from: 1, to: 5, take: 1}]}\n", "my.yaml:11: device.squeeze: [{from: 1, to: 5, take: 1}]: item 1: take: 1: not a size; allowed: a list of {from: steps, to: steps, take: size}, where \"to\" is greater than \"from\""},
		{"squeeze: missing", good + "device: {squeeze: [{from: 1, to: 5}]}\n", "my.yaml:11: device.squeeze: [{from: 1, to: 5}]: item 1: take is missing; allowed: a list of {from: steps, to: steps, take: size}, where \"to\" is greater than \"from\""},
		{"squeeze: backwards", good + "device: {squeeze: [{from: 5, to: 5, take: 1MiB}]}\n", "my.yaml:11: device.squeeze: [{from: 5, to: 5, take: 1MiB}]: item 1: to (5) must be greater than from (5); allowed: a list of {from: steps, to: steps, take: size}, where \"to\" is greater than \"from\""},
	} {
		t.Run(test.name, func(t *testing.T) { expect(t, test.content, nil, []string{test.want}) })
	}
}

func TestBadTogether(t *testing.T) {
	for _, test := range []struct {
		name    string
		content string
		want    []string
	}{
		{"heads", spoilt("64", "65"), []string{"my.yaml:3: model.heads: 4: must divide model.width (65)"}},
		{"wide heads in bf16", spoilt("64", "516") + "device: {precision: bf16}\n", []string{
			"my.yaml:3: model.heads: 4: leaves 129 channels per head, and with device.precision bf16 a GPU takes at most 128; use more heads, another precision or device.kind host",
		}},
		{"tf32 on the host", good + "device: {kind: host, precision: tf32}\n", []string{
			"my.yaml:11: device.precision: tf32: only a GPU supports it; use fp32 or bf16 on the host",
		}},
		{"fp16", good + "device: {precision: fp16}\n", []string{
			"my.yaml:11: device.precision: fp16: not known; allowed: fp32, tf32 or bf16",
		}},
		{"missing", "seed: 1\n", []string{
			"my.yaml: model.kind: missing; allowed: gpt or mlp",
			"my.yaml: data.kind: missing; allowed: text, idx or blobs",
			"my.yaml: train.steps: missing; set this or train.epochs",
		}},
		{"anchors", "a: &a [*a]\n", []string{
			"my.yaml:1: anchor &a: not allowed; text that begins with & needs quotes",
			"my.yaml:1: alias *a: not allowed, write the value; text that begins with * needs quotes",
		}},
		{"everything at once", `model: {kind: mlp, heads: 2, widht: 3}
data: {kind: text, limit: 0B, glob: '['}
schedule: {min: 3, warmup: 30}
train: {steps: 10, epochs: 1, keep: none}
batch: {effective: 8, micro: 9, min_micro: 10}
`, []string{
			"my.yaml:1: model.widht: 3: unknown key; did you mean model.width?",
			"my.yaml:2: data.limit: 0B: out of range; allowed: all, or a size of at least 1B with its unit, such as 512MiB or 24GiB",
			`my.yaml:2: data.glob: "[": not a pattern; allowed: a pattern for names, as in *.go`,
			"my.yaml:4: train.keep: none: not a whole number; allowed: a whole number, 1 to 1000000",
			"my.yaml:1: model.heads: 2: only for model.kind gpt, but this configuration has mlp; leave this key out, for example with --unset model.heads",
			"my.yaml:3: schedule.min: 3: only for schedule.kind cosine or linear, but this configuration has constant; leave this key out, for example with --unset schedule.min",
			"my.yaml:2: data.kind: text: model.kind mlp reads features: idx or blobs",
			"my.yaml:5: batch.micro: 9: must be at most batch.effective (8)",
			"my.yaml:5: batch.min_micro: 10: must be at most batch.effective (8)",
			"my.yaml:4: train.epochs: 1: train.steps is set too (10); leave one out, for example with --unset train.steps",
			"my.yaml:3: schedule.warmup: 30: must be at most train.steps (10); make it shorter, or leave it out, for example with --unset schedule.warmup",
		}},
		{"decay", spoilt("32", "32\nschedule: {kind: cosine, min: 3, warmup: 10, steps: 10}"), []string{
			"my.yaml:9: schedule.min: 3: must be at most optimizer.lr (0.001)",
			"my.yaml:9: schedule.warmup: 10: must be below schedule.steps (10); make it shorter, or leave it out, for example with --unset schedule.warmup",
		}},
		{"decay to the end", good + "schedule: {kind: linear, warmup: 100}\n", []string{
			"my.yaml:11: schedule.warmup: 100: must be below train.steps (100), where the schedule ends; make it shorter, or leave it out, for example with --unset schedule.warmup",
		}},
		{"min_micro", good + "batch2: 1\ndevice: {capacity: 4MiB, squeeze: [{from: 1, to: 9, take: 2MiB}, {from: 5, to: 6, take: 2MiB}]}\n", []string{
			"my.yaml:11: batch2: 1: unknown key; did you mean batch?",
			"my.yaml:12: device.squeeze: [{from: 1, to: 9, take: 2MiB}, {from: 5, to: 6, take: 2MiB}]: takes up to 4 MiB of 4 MiB, which leaves nothing; turn the squeeze off with --set 'device.squeeze=[]', or raise device.capacity",
		}},
		{"squeeze of a GPU", good + "device: {kind: cuda, squeeze: [{from: 1, to: 9, take: 2MiB}]}\n", []string{
			"my.yaml:11: device.squeeze: [{from: 1, to: 9, take: 2MiB}]: only the host device can be squeezed; turn the squeeze off with --set 'device.squeeze=[]', or set device.kind to host",
		}},
		{"data", "model: {kind: mlp}\ndata: {kind: blobs}\ntrain: {epochs: 1}\n", []string{
			"my.yaml:2: data.samples: all: blobs are generated: set the number of samples",
		}},
		{"images", "model: {kind: mlp}\ndata: {kind: idx}\ntrain: {epochs: 1}\n", []string{
			"my.yaml:2: data.path: goroot: set it to the folder with the files train-images-idx3-ubyte and train-labels-idx1-ubyte; " + GetIDX,
		}},
		{"a GPT of images", "model: {kind: gpt}\ndata: {kind: idx, path: x}\ntrain: {epochs: 1}\n", []string{
			"my.yaml:2: data.kind: idx: model.kind gpt reads only text",
		}},
		{"uniform without a divisor", spoilt("32", "997\n  micro: 996\n  uniform: true\n  min_micro: 3"), []string{
			"my.yaml:9: batch.micro: 996: batch.uniform needs a divisor of batch.effective (997) between batch.min_micro (3) and this value, but there is none; the nearest are 1 and 997: set batch.min_micro to 1 or batch.micro to 997, or choose another batch.effective",
		}},
		{"uniform with one just outside", spoilt("32", "24\n  micro: 11\n  uniform: true\n  min_micro: 9"), []string{
			"my.yaml:9: batch.micro: 11: batch.uniform needs a divisor of batch.effective (24) between batch.min_micro (9) and this value, but there is none; the nearest are 8 and 12: set batch.min_micro to 8 or batch.micro to 12, or choose another batch.effective",
		}},
		{"uniform with one at an end", spoilt("32", "24\n  micro: 11\n  uniform: true\n  min_micro: 8"), nil},
		{"uniform with one at the other end", spoilt("32", "24\n  micro: 12\n  uniform: true\n  min_micro: 9"), nil},
		{"uniform and searched for", spoilt("32", "997\n  uniform: true\n  min_micro: 3"), nil},
		{"not uniform", spoilt("32", "997\n  micro: 996\n  min_micro: 3"), nil},
		{"min_micro above micro", spoilt("32", "32\n  micro: 4\n  min_micro: 5"), []string{
			"my.yaml:10: batch.min_micro: 5: must be at most batch.micro (4)",
		}},
	} {
		t.Run(test.name, func(t *testing.T) { expect(t, test.content, nil, test.want) })
	}
}

// TestUnset checks that keys can be left out of a preset, and that a key that cannot be
// left out is reported.
func TestUnset(t *testing.T) {
	c, err := Load("gpt", []string{"schedule.kind=constant"}, "schedule.min")
	if err != nil || c.Schedule.Kind != "constant" || c.Schedule.Min != 0 {
		t.Errorf("%+v, %v", c, err)
	}
	for key, want := range map[string]string{
		"schedule":     "--unset: schedule: a group; unset one of kind, warmup, steps and min",
		"schedule.mim": "--unset: schedule.mim: unknown key; did you mean schedule.min?",
		"seed":         "--unset: seed: also set by --set; leave one out",
	} {
		if _, err := Load("gpt", []string{"seed=3"}, key); err == nil || err.Error() != want {
			t.Errorf("%s: %v", key, err)
		}
	}
	written, err := Text("gpt")
	if preset, _ := presetText("gpt"); err != nil || !bytes.Equal(written, preset) {
		t.Errorf("%.40q, %v", written, err)
	}
}

func TestBadOverrides(t *testing.T) {
	for set, want := range map[string]string{
		"":                       "--set: must be key=value, as in --set batch.micro=auto",
		"x":                      "--set: x: must be key=value, as in --set batch.micro=auto",
		"=3":                     "--set: =3: must be key=value, as in --set batch.micro=auto",
		"batch=3":                "--set: batch: 3: a group; set one of effective, micro, min_micro and uniform",
		"bach.micro=3":           "--set: bach.micro: 3: unknown key; did you mean batch.micro?",
		"batch.micro=":           "--set: batch.micro: no value, expected a whole number; allowed: auto, or a whole number, 1 to 1000000",
		"batch.micro=x":          "--set: batch.micro: x: not a whole number; allowed: auto, or a whole number, 1 to 1000000",
		"batch.micro={a":         "--set: batch.micro: {a: invalid YAML: line 1: did not find expected ',' or '}'; allowed: auto, or a whole number, 1 to 1000000",
		"batch.micro=64":         "--set: batch.micro: 64: must be at most batch.effective (32)",
		"batch.uniform=yes":      "--set: batch.uniform: yes: neither true nor false; allowed: true or false",
		"data.glob=a/*.go":       `--set: data.glob: a/*.go: is matched against names, which have no /; allowed: a pattern for names, as in *.go`,
		"data.path=a\nb":         `--set: data.path: "a\nb": has a control character; allowed: text`,
		"train.steps=null":       "--set: train.steps: null: no value, expected a whole number; allowed: a whole number, 1 to 1000000000",
		"optimizer.momentum=0.5": "--set: optimizer.momentum: 0.5: only for optimizer.kind sgd, but this configuration has adamw; leave this key out",
	} {
		t.Run(set, func(t *testing.T) { expect(t, good, []string{set}, []string{want}) })
	}
}

func TestOverrides(t *testing.T) {
	c, err := parse([]byte(good), "my.yaml", []string{
		"batch.micro=8", "batch.micro=auto", "data.glob=*.go", "data.path=~", "optimizer.beta1=0.5", "name=123",
		"device.squeeze=[{from: 80, to: 120, take: 20MiB}]", "memory.headroom=12.5%", "memory.allow=[]", "seed=18446744073709551615",
	})
	if err != nil {
		t.Fatal(err)
	}
	if c.Batch.Micro != 0 || c.Data.Glob != "*.go" || c.Data.Path != "~" || c.Optimizer.Beta1 != 0.5 || c.Name != "123" ||
		!slices.Equal(c.Device.Squeeze, []Squeeze{{80, 120, 20 << 20}}) || c.Memory.Headroom != 0.125 || len(c.Memory.Allow) != 0 ||
		c.Seed != 1<<64-1 {
		t.Errorf("%+v", c)
	}
}

func TestLoad(t *testing.T) {
	t.Chdir(t.TempDir())
	write := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if c, err := Load("mlp-tight", nil); err != nil || c.Name != "mlp-tight" || c.Data.Kind != "blobs" {
		t.Errorf("the preset mlp-tight: %+v, %v", c, err)
	}
	write("mnist", good)
	if c, err := Load("mnist", nil); err != nil || c.Name != "mnist" || c.Data.Kind != "text" {
		t.Errorf("a file wins over the preset: %+v, %v", c, err)
	}
	write("ten lines.yaml", good)
	if _, err := Load("ten lines.yaml", nil); err == nil || !strings.Contains(err.Error(), "the file's name is not a valid name for a folder; set the key name; allowed:") {
		t.Errorf("a name for a file, not for a folder: %v", err)
	}
	if c, err := Load("ten lines.yaml", []string{"name=ten"}); err != nil || c.RunDir() != filepath.Join("headroom-runs", "ten") {
		t.Errorf("a name given: %+v, %v", c, err)
	}
	t.Setenv("HEADROOM_RUNS_DIR", "kept")
	write("there.yaml", good+"output: {dir: there}\n")
	for _, c := range []struct {
		path        string
		sets, unset []string
		want        string
	}{
		{"gpt", nil, nil, "kept/gpt"},
		{"gpt", []string{"output.dir=runs"}, nil, "runs/gpt"},
		{"there.yaml", nil, nil, "there/there"},
		{"there.yaml", nil, []string{"output.dir"}, "kept/there"},
	} {
		if got, err := Load(c.path, c.sets, c.unset...); err != nil || got.RunDir() != c.want {
			t.Errorf("%v: %+v, %v", c, got, err)
		}
	}
	if err := os.Mkdir("gpt", 0o755); err != nil {
		t.Fatal(err)
	}
	if c, err := Load("gpt", nil); err != nil || c.Model.Kind != "gpt" {
		t.Errorf("a folder does not hide a preset: %+v, %v", c, err)
	}
	write("large.yaml", strings.Repeat("#", maxFile+1))
	for path, want := range map[string]string{
		"large.yaml": "read config: large.yaml: larger than 1048576 bytes: not a configuration",
		os.DevNull:   "read config: /dev/null: not a file",
		"gtp":        "read config: gtp is neither a file nor a preset (file does not exist); did you mean the preset gpt?",
		"none.yaml":  "read config: none.yaml is neither a file nor a preset (file does not exist); presets: gpt, mlp-tight, mnist",
	} {
		if _, err := Load(path, nil); err == nil || err.Error() != want {
			t.Errorf("%s: %v\nwant %s", path, err, want)
		}
	}
	if _, err := Load("none.yaml", nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v is not fs.ErrNotExist", err)
	}
}

// FuzzLoad checks that Load does not panic, whatever the file and the override hold,
// and that a configuration that it accepts is the same after it is written and read
// back.
func FuzzLoad(f *testing.F) {
	f.Add(good, "batch.micro=auto")
	f.Add("a: &a [*a]\n", "device.squeeze=[{from: 80, to: 120, take: 20MiB}]")
	for _, name := range Presets() {
		content, _ := presetText(name)
		f.Add(string(content), "memory.headroom=7%")
	}
	f.Fuzz(func(t *testing.T, content, set string) {
		c, err := parse([]byte(content), "my.yaml", []string{set})
		if err != nil {
			return
		}
		sameWhenWritten(t, c)
	})
}
