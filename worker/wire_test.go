package worker

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestWireIsAsDocumented checks that the messages in the package comment are exactly those
// that the two ends send, and that the receiving end knows each of them.
func TestWireIsAsDocumented(t *testing.T) {
	var source strings.Builder
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if !strings.HasSuffix(name, "_test.go") {
			source.WriteString(textOf(t, name))
		}
	}
	ours, theirs := source.String(), textOf(t, "python/headroom_train/wire/wire.py")+textOf(t, "python/headroom_train/find/find.py")
	all := func(text, pattern string) (found []string) {
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
			found = append(found, m[1:]...)
		}
		found = slices.DeleteFunc(found, func(word string) bool { return word == "" })
		slices.Sort(found)
		return slices.Compact(found)
	}
	documented := func(way string) []string {
		words := strings.Fields(all(textOf(t, "doc.go"), `(?m)^//\t`+way+` headroom +(.*)$`)[0])
		slices.Sort(words)
		return words
	}
	for what, c := range map[string][2][]string{
		"sent by headroom": {documented("from"), all(ours, `answer\{Type: "(\w+)"`)},
		"known in Python":  {documented("from"), all(theirs, `message\.get\("type"\) == "(\w+)"`)},
		"sent by Python":   {documented("to"), all(theirs, `(?:self\._send|wire\.trial)\("(\w+)"`)},
		"known here":       {documented("to"), all(ours, `(?:case|m\.Type [!=]=) "(hello|step|oom|survived|holds|memory|note|refused|check|tracks|ready|bye)"|(tried)", "(cannot)"`)},
	} {
		if !slices.Equal(c[0], c[1]) {
			t.Errorf("%s: %v, documented: %v", what, c[1], c[0])
		}
	}
}

func textOf(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
