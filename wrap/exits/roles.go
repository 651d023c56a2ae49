package exits

import (
	"regexp"
	"strings"
)

// conditional lists words that turn a sentence about memory into advice, a warning or a
// condition. They count only in front of the recognised text, since PyTorch itself puts
// advice after an error.
var conditional = []string{
	" if ", "try ", "trying to avoid", "consider", "avoid", " may ", " might ", " can ", "could ", "prevent",
	"reduce", "when ", "in case", "hint", "tip:", "note:", "recommend", "suggest", "likely", "instead of", "unless ",
	"example", "e.g.", "help with", "risk", "http://", "https://", "usage:", "# ", "skip", "retry", "recover", "catch", "ignoring",
	"should ", "to fix", "solve", "due to potential", "potential", "not enough for", "otherwise", "previous", "last run", "no longer",
}

// furtherOn lists words that, if they follow soon after a text about memory, show that
// the text is about memory errors in general or about one that the program handled.
var furtherOn = []string{" errors", " issues", " may ", " might ", " can ", " could ", " problems", "? ", " detected, reducing", ", retrying",
	", skipping", "; retrying", "; skipping", " - skipping", " - retrying", " handler", " exceptions", ", ignoring"}

// advises reports whether the text around a match is advice, documentation or a
// quotation. Then it is no sign that a failure happened.
func advises(text string, m textMatch) bool {
	lower := " " + strings.ToLower(text)
	before, after := lower[:min(m.at+1, len(lower))], lower[min(m.end+1, len(lower)):]
	before = " " + before[strings.LastIndexByte(before, '\n')+1:]
	after, _, _ = strings.Cut(after, "\n")
	if strings.HasSuffix(before, "`") || strings.HasSuffix(before, `"`) || strings.HasSuffix(before, "'") ||
		strings.HasSuffix(before, "“") {
		return true
	}
	if m.meaning == confirmation && strings.Contains(after, " if ") { // PyTorch's own errors continue with "if"
		return true
	}
	return containsAny(before, conditional) || containsAny(after[:min(len(after), 40)], furtherOn)
}

func containsAny(s string, words []string) bool {
	for _, w := range words {
		if strings.Contains(s, w) {
			return true
		}
	}
	return false
}

// These weights and thresholds decide how much progress there must be after an error
// before the command counts as having survived it. When a command exits, each of its
// progress bars may be drawn once more, so a bar weighs less than a line with a loss.
// With several ranks more progress is needed, because the other ranks may finish their
// current step.
const (
	barWeight     = 1 // of a new state of a progress bar
	lossWeight    = 3 // of a line with a loss
	survivedAlone = 3 // sum of weights needed if there is one rank
	survivedRanks = 6 // sum of weights needed if there are several ranks
)

var (
	barState  = regexp.MustCompile(`(\d+)/(\d+|\?) ?\[(?:\d+:)?\d\d:\d\d`)
	lossState = regexp.MustCompile(`(?i)\bloss(?:_\w+)?['"]?\s*[=:|]?\s*['"]?(?:-?\d|nan\b)|\bloss/train|_loss['"]?\s*[=:|]\s*['"]?-?\d`)
	stepState = regexp.MustCompile(`(?i)\b(?:step|iter|iteration|update|batch)s?['"]?\s*[=:#\[]?\s*\d`)
	// barOther matches progress bars of work other than training. Ranks that did not fail
	// may finish such work after the error.
	barOther = regexp.MustCompile(`(?i)loading|download|fetch|tokeniz|\bmap\b|generating|filter|shards|cach|saving|upload|resolving|extract`)
)

// progress returns how strongly a line shows that training continues, and a key for the
// state that it shows. A line that shows the same state again has the same key.
func progress(text string) (weight int, key string) {
	if !strings.ContainsAny(text, "0123456789") || strings.HasPrefix(text, "wandb:") {
		return 0, ""
	}
	if at := barState.FindStringSubmatch(text); at != nil {
		if barOther.MatchString(text) {
			return 0, ""
		}
		return barWeight, at[1] + "/" + at[2]
	}
	// Without a step, an epoch or a brace in the line, "loss" may be a word in a sentence.
	if lossState.MatchString(text) && (stepState.MatchString(text) || strings.Contains(text, "epoch") ||
		strings.Contains(text, "Epoch") || strings.HasPrefix(text, "{")) {
		return lossWeight, text
	}
	return 0, ""
}
