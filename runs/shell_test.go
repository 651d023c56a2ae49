package runs

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestShell(t *testing.T) {
	for want, words := range map[string][]string{
		"python train.py --lr=1e-4":        {"python", "train.py", "--lr=1e-4"},
		"sh -c 'echo $HOME; exit 3'":       {"sh", "-c", "echo $HOME; exit 3"},
		`echo 'it'\''s' ''`:                {"echo", "it's", ""},
		`sh -c $'echo a\n\techo \'b\\\''`:  {"sh", "-c", "echo a\n\techo 'b\\'"},
		`echo $'\x1b[31m\xff1 é'`:          {"echo", "\x1b[31m\xff1 é"},
		"echo 'naïve ~ *' '~' '{a,b}' '!'": {"echo", "naïve ~ *", "~", "{a,b}", "!"},
	} {
		if got := Shell(words...); got != want {
			t.Errorf("%q: %s, want %s", words, got, want)
		}
	}
}

// TestShellMeansTheSame checks that bash reads the quoted words back unchanged.
func TestShellMeansTheSame(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("SKIPPED: there is no bash")
	}
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.OneOf(rapid.String(), rapid.StringOfN(rapid.RuneFrom([]rune("ab01'\"\\$`!~*? \n\t\r\x1b\u009b{}[]();&|<>#=")), 0, 12, -1),
			rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 8), func(b []byte) string { return string(b) }))
		words := rapid.SliceOfN(rapid.Map(word, func(s string) string { return strings.ReplaceAll(s, "\x00", "") }), 1, 20).Draw(t, "words")
		line := Shell(words...)
		if strings.ContainsAny(line, "\n\x1b") {
			t.Fatalf("%q is more than a line", line)
		}
		out, err := exec.Command(bash, "--norc", "-c", `printf '%s\0' `+line).Output()
		if got := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00"); err != nil || !slices.Equal(got, words) {
			t.Fatalf("%s is read as %q, %v; want %q", line, got, err, words)
		}
	})
}
