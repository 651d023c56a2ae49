package runs

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Hidden stands for a secret in everything that is written for people.
const Hidden = "***"

// secretName matches the names of secrets: they end in key, token, password, passwd, passphrase, secret, auth, bearer or
// credentials, or are pass. The HTTP header Authorization is another.
const secretName = `(?:[\w.+-]*(?:key|token|password|passwd|passphrase|secret|auth|bearer|credentials?)|\bpass)`

var (
	secretFlag     = regexp.MustCompile(`(?i)^--?` + secretName + `$`)
	secretGiven    = regexp.MustCompile(`(?is)^(` + secretName + `=)(.+)$`)
	secretWithin   = regexp.MustCompile(`(?i)(` + secretName + `["']?\s*[=:]\s*|--` + secretName + `\s+|authorization["']?\s*[=:]\s*["']?(?:bearer|basic|token)\s+)("[^"]*"|'[^']*'|[^\s;&|,}"']+)`)
	secretUserinfo = regexp.MustCompile(`(://[^/\s:@]+:)([^/\s@]+)(@)`)
)

// Masked returns the words of a command with [Hidden] in place of each secret: the value of a
// flag such as --wandb-key or --api_key=, of a variable or setting such as HF_TOKEN=, the same inside
// a word that is a script or JSON, and the password in a URL. It also returns the secrets.
// If there are none, the words themselves are returned.
func Masked(words []string) (masked, secrets []string) {
	masked = slices.Clone(words)
	hide := func(secret string) string {
		secrets = append(secrets, strings.Trim(secret, `"'`))
		return Hidden
	}
	for i, word := range words {
		switch given := secretGiven.FindStringSubmatch(word); {
		case i > 0 && secretFlag.MatchString(words[i-1]) && !strings.HasPrefix(word, "-"):
			masked[i] = hide(word)
		case given != nil:
			masked[i] = given[1] + hide(given[2])
		default:
			masked[i] = secretWithin.ReplaceAllStringFunc(word, func(found string) string {
				parts := secretWithin.FindStringSubmatch(found)
				return parts[1] + hide(parts[2])
			})
			masked[i] = secretUserinfo.ReplaceAllStringFunc(masked[i], func(found string) string {
				parts := secretUserinfo.FindStringSubmatch(found)
				return parts[1] + hide(parts[2]) + parts[3]
			})
		}
	}
	if secrets == nil {
		return words, nil
	}
	return masked, secrets
}

// scrubbed is the shortest secret that Scrub removes, in bytes: anything shorter could be a number or a
// word of the text.
const scrubbed = 8

// Scrub returns a function that puts [Hidden] in place of the given secrets in a text, such as an error
// of the command that quotes them.
func Scrub(secrets []string) func(string) string {
	var pairs []string
	for _, s := range secrets {
		if len(s) >= scrubbed {
			pairs = append(pairs, s, Hidden)
		}
	}
	return strings.NewReplacer(pairs...).Replace
}

// secretsFile is the only file of a run that holds the secrets of its command. Nobody else may
// read it.
const secretsFile = "secrets.json"

// command is a command as it was given, and as run.yaml has it. It is what secretsFile holds, with those who are
// to be told about the run: the address of a webhook is a secret.
type command struct {
	Words  []string `json:"words"`
	Masked []string `json:"masked"`
	Notify []string `json:"notify,omitempty"`
}

// KeepSecrets keeps words, the run's command, and notify, who is told about the run, for a later process, in a file that only
// this user may read, if masked has not all of the command or somebody is told.
func (f *Folder) KeepSecrets(words, masked, notify []string) error {
	if slices.Equal(words, masked) && len(notify) == 0 {
		return nil
	}
	text, err := json.Marshal(command{words, masked, notify})
	if err != nil {
		return fmt.Errorf("write %s: %w", secretsFile, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.secrets = append(text, '\n')
	return f.writeSecrets()
}

func (f *Folder) writeSecrets() error {
	path := f.path(secretsFile)
	beside := filepath.Join(f.dir, "."+secretsFile+".tmp")
	file, err := os.OpenFile(beside, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(f.secrets)
	if err = errors.Join(err, file.Chmod(0o600), file.Close()); err == nil {
		err = os.Rename(beside, path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", secretsFile, errors.Join(err, os.Remove(beside)))
	}
	f.unsynced = append([]string{path}, f.unsynced...)
	return nil
}

// place returns the index in c of the word at i, which comes after the same word in both, or -1 if
// there is none. Somebody may have added or removed words since.
func (c command) place(words []string, i int) int {
	found := -1
	for at := range min(len(c.Masked), len(c.Words)) {
		if c.Masked[at] != words[i] || at > 0 && (i == 0 || c.Masked[at-1] != words[i-1]) {
			continue
		}
		if at == i {
			return at
		}
		if found < 0 {
			found = at
		}
	}
	return found
}

// SecretError says that a word of a command has no secret any more, but only [Hidden] in its place.
type SecretError struct {
	Word string
	Err  error // why the secret is not known
}

func (e *SecretError) Error() string {
	return fmt.Sprintf("the command has %s in place of a secret, in %q: %v", Hidden, e.Word, e.Err)
}

func (e *SecretError) Unwrap() error { return e.Err }

// Notify returns who was to be told about the run in dir; nobody if that is not known.
func Notify(dir string) []string {
	var kept command
	text, err := os.ReadFile(filepath.Join(dir, secretsFile))
	if err != nil || json.Unmarshal(text, &kept) != nil {
		return nil
	}
	return kept.Notify
}

// Unmasked returns the command that was kept in dir as the given words, with its secrets. The error
// is a *[SecretError] if a secret is missing.
func Unmasked(dir string, words []string) ([]string, error) {
	if _, secrets := Masked(words); !slices.Contains(secrets, Hidden) {
		return words, nil
	}
	var kept command
	text, err := os.ReadFile(filepath.Join(dir, secretsFile))
	if err == nil {
		err = json.Unmarshal(text, &kept)
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("there is no %s beside it", secretsFile)
	}
	whole := slices.Clone(words)
	for i, word := range words {
		if !strings.Contains(word, Hidden) {
			continue
		}
		at := kept.place(words, i)
		if at < 0 {
			if err == nil { // the file is another command's, or the word was edited
				err = fmt.Errorf("%s has no such word", secretsFile)
			}
			return nil, &SecretError{word, err}
		}
		whole[i] = kept.Words[at]
	}
	return whole, nil
}
