package rewrite

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// doubt pairs a sign that training in smaller micro-batches may change the result, even
// if the knobs keep the effective batch, with the condition under which the result stays
// the same.
type doubt struct {
	sign  *regexp.Regexp // matches the sign in a line
	holds string         // the condition, in words
}

// compared is the condition under which a loss can be computed from micro-batches at all.
const compared = "the loss does not compare the samples of a batch with each other"

// doubts holds every known doubt. Code, configurations and arguments are all searched for
// the signs.
var doubts = []doubt{
	{
		regexp.MustCompile(`\b(?:\w*NegativesRanking\w*|InfoNCE\w*|info_nce\w*|NTXent\w*|NT_Xent\w*|nt_xent\w*|SupCon\w*|SupervisedContrastive\w*|\w*[Cc]ontrastive_?[Ll]oss\w*|` +
			`(?:Si[gG])?C?[lL][iI][pP]Loss|in_batch_neg\w*|BarlowTwins\w*|VICReg\w*|SimCLR\w*|Batch(?:Hard|All|SemiHard)\w*Loss)\b`),
		compared,
	},
	{
		regexp.MustCompile(`\b(?:Sync)?BatchNorm(?:[123]d|2dSync)?\b|\bbatch_norm\(|\bdist_bn\b|\b(?:wide_)?resne(?:t|xt)\d+\w*|\b(?:efficientnet|mobilenet|densenet|regnet|inception)_?\w*\d\w*|\bvgg\d+_bn\b`),
		"it is acceptable to compute batch statistics (BatchNorm) over a smaller batch",
	},
	{
		regexp.MustCompile(`\b(?:\w*lr|\w*learning_rate)\s*(?:=|\*=)[^=#]*[*/][^#]*\b(?:\w+\.)?(?:batch_?size|bs|per_device_train_batch_size)\b|\b(?:batch_?size|bs)\b[^#=]*[*/][^#=]*\b(?:base_lr|args\.lr|learning_rate)\b`),
		"the learning rate does not depend on the micro-batch",
	},
}

// optimizer matches a line that assigns a new optimizer to a name.
var optimizer = regexp.MustCompile(`^\s*((?:self\.)?\w+)\s*=\s*(?:torch\.)?(?:optim\.)?(?:Adam\w*|SGD|RMSprop|Adagrad|Lion|Adafactor|NAdam|RAdam)\(`)

// doubtful returns the conditions under which smaller micro-batches would not change what
// the command trains, each with the place that raises the doubt. It inspects only what it
// can read: the script, the modules that the script imports from its own folder, the
// configurations and the arguments.
func doubtful(m *Match) (holds []string) {
	sources := sourcesOf(m)
	for _, d := range doubts {
		for _, s := range sources {
			if line, what := s.first(d.sign); what != "" {
				holds = append(holds, fmt.Sprintf("%s (%s in %s)", d.holds, what, s.at(line)))
				break
			}
		}
	}
	for _, s := range sources {
		if names := s.optimizers(); len(names) > 1 {
			return append(holds, fmt.Sprintf("each of the script's optimizers takes one step per accumulation (%s in %s)", strings.Join(names, " and "), s.name))
		}
	}
	return holds
}

// source is a text that is searched for doubts.
type source struct {
	name  string
	lines []string
	code  bool // the text is Python code
}

func (s source) at(line int) string {
	if len(s.lines) == 1 {
		return s.name
	}
	return fmt.Sprintf("%s, line %d", s.name, line+1)
}

// first returns the first line, counted from 0, that has the sign outside a comment, and
// the text that matched. The text is "" if there is no such line.
func (s source) first(sign *regexp.Regexp) (line int, what string) {
	for i, text := range s.lines {
		if code, _, _ := strings.Cut(text, "#"); len(code) < 4096 {
			if what = sign.FindString(code); what != "" {
				return i, strings.TrimSpace(what)
			}
		}
	}
	return 0, ""
}

// optimizers returns the different names that optimizers are assigned to.
func (s source) optimizers() (names []string) {
	for _, line := range s.lines {
		at := optimizer.FindStringSubmatch(line)
		if s.code && at != nil && !slices.Contains(names, at[1]) {
			names = append(names, at[1])
		}
	}
	return names
}

// modulesMost is the largest number of Python files that are read: the script and its
// modules.
const modulesMost = 32

func sourcesOf(m *Match) []source {
	all := []source{{name: "the arguments", lines: []string{strings.Join(m.own(), " ")}}}
	for _, d := range m.files {
		if !d.script {
			all = append(all, source{name: d.name, lines: strings.Split(string(d.content), "\n")})
		}
	}
	if m.Launch.Script == "" {
		return all
	}
	folder, names := path.Dir(m.Launch.Script), []string{m.Launch.Script}
	read := 0
	for i := 0; i < len(names) && read < modulesMost; i++ {
		content, err := m.read(names[i])
		if err != nil {
			continue // not a module beside the script
		}
		read++
		all = append(all, source{name: names[i], lines: strings.Split(string(content), "\n"), code: true})
		for _, word := range importLines(string(content)) {
			module := path.Join(folder, strings.ReplaceAll(strings.TrimLeft(word, "."), ".", "/")+".py")
			if !slices.Contains(names, module) && len(names) < 16*modulesMost {
				names = append(names, module)
			}
		}
	}
	return all
}
