package runs

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestMasked checks which parts of a command are secrets.
func TestMasked(t *testing.T) {
	for _, c := range []struct{ words, masked, secrets string }{ // each a list of words, separated by |
		{"python|train.py|--lr|0.1", "python|train.py|--lr|0.1", ""},
		{"python|train.py|--wandb-key|abc|--lr|0.1", "python|train.py|--wandb-key|***|--lr|0.1", "abc"},
		{"python|train.py|--api_key=abc", "python|train.py|--api_key=***", "abc"},
		{"env|HF_TOKEN=abc=d|WANDB_API_KEY=e f|python", "env|HF_TOKEN=***|WANDB_API_KEY=***|python", "abc=d|e f"},
		{"x|-password|abc|--Secret|d", "x|-password|***|--Secret|***", "abc|d"},
		{"x|logger.api_key=abc|++hub.token=d", "x|logger.api_key=***|++hub.token=***", "abc|d"},
		{"x|--use-token|--lr|1", "x|--use-token|--lr|1", ""}, // a switch
		{"x|--token", "x|--token", ""},
		{"x|--token=", "x|--token=", ""},
		{"x|--num_key_value_heads=8|--max-tokens|9|--keys|a", "x|--num_key_value_heads=8|--max-tokens|9|--keys|a", ""},
		{"bash|-c|cd x; HF_TOKEN='a b' python t.py --api-key xyz; echo", "bash|-c|cd x; HF_TOKEN=*** python t.py --api-key ***; echo", "a b|xyz"},
		{"bash|-c|HF_TOKEN=a python t.py", "bash|-c|HF_TOKEN=***", "a python t.py"}, // a variable's value may have spaces
		{`x|--config|{"api_key": "abc", "lr": 1}`, `x|--config|{"api_key": ***, "lr": 1}`, "abc"},
		{"x|--db|postgres://me:abc@host/db", "x|--db|postgres://me:***@host/db", "abc"},
		{"x|--url|https://host:80/a@b", "x|--url|https://host:80/a@b", ""},
		{"x|--passwd|abc|--gpg-passphrase=d", "x|--passwd|***|--gpg-passphrase=***", "abc|d"},
		{"x|--auth|me:abc|--basic_auth=d|--credentials|e", "x|--auth|***|--basic_auth=***|--credentials|***", "me:abc|d|e"},
		{"x|--bearer|abc|--bearers|2", "x|--bearer|***|--bearers|2", "abc"},
		{"x|--pass|abc|pass=d|--two-pass|2|--bypass=3|--author|f", "x|--pass|***|pass=***|--two-pass|2|--bypass=3|--author|f", "abc|d"},
		{`curl|-H|Authorization: Bearer abc|x`, `curl|-H|Authorization: Bearer ***|x`, "abc"},
		{"x|--token|a\nb", "x|--token|***", "a\nb"},
	} {
		words := strings.Split(c.words, "|")
		masked, secrets := Masked(words)
		if strings.Join(masked, "|") != c.masked || strings.Join(secrets, "|") != c.secrets {
			t.Errorf("%q: %q, %q", c.words, masked, secrets)
		}
		if again, _ := Masked(masked); !slices.Equal(again, masked) {
			t.Errorf("%q, masked again: %q", masked, again)
		}
	}
}

// TestSecretsAreKept checks that a command with secrets is whole for a later process, that only this
// user may read them, and that without their file there is an error.
func TestSecretsAreKept(t *testing.T) {
	words := []string{"env", "HF_TOKEN=abc", "python", "t.py", "--key", "d", "--stars", "***"}
	masked, _ := Masked(words)
	f, err := Open(filepath.Join(t.TempDir(), "run"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // a test's
	if err := f.KeepSecrets(words, masked, nil); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(f.Dir(), secretsFile))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	edited := slices.Insert(slices.Clone(masked), 3, "-u") // by the user, in run.yaml
	for _, c := range []struct{ given, want []string }{
		{masked, words}, {words, words}, {edited, slices.Insert(slices.Clone(words), 3, "-u")}, {[]string{"echo", "***"}, []string{"echo", "***"}},
	} {
		if got, err := Unmasked(f.Dir(), c.given); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%q: %q, %v, want %q", c.given, got, err, c.want)
		}
	}
	var missing *SecretError
	if _, err := Unmasked(f.Dir(), []string{"env", "OTHER_TOKEN=***"}); !errors.As(err, &missing) || missing.Word != "OTHER_TOKEN=***" {
		t.Errorf("of another command: %v", err)
	}
	if _, err := Unmasked(t.TempDir(), masked); !errors.As(err, &missing) || !strings.Contains(err.Error(), "secrets.json") {
		t.Errorf("without the file: %v", err)
	}
	if err := f.KeepSecrets([]string{"python", "t.py"}, []string{"python", "t.py"}, nil); err != nil {
		t.Error(err)
	}
}

// TestScrub checks that secrets disappear from a text, and that a short one, which could be any
// number or word, does not make it unreadable.
func TestScrub(t *testing.T) {
	if got := Scrub([]string{"0", "SECRETARG"})("exit status 10: unknown argument SECRETARG"); got != "exit status 10: unknown argument ***" {
		t.Error(got)
	}
}
