package runs

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Shell quotes a command for pasting into a shell, which then reads exactly these words.
// The result is a single line. Words with control characters or invalid UTF-8 are quoted
// as $'…', which bash, zsh and ksh understand, but which POSIX did not define before
// 2024.
func Shell(words ...string) string {
	quoted := make([]string, len(words))
	for i, word := range words {
		quoted[i] = shellWord(word)
	}
	return strings.Join(quoted, " ")
}

func shellWord(word string) string {
	plain := func(r rune) bool {
		return strings.ContainsRune("-_=./,:+@%", r) || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
	}
	switch {
	case word != "" && !strings.ContainsFunc(word, func(r rune) bool { return !plain(r) }):
		return word
	case utf8.ValidString(word) && !strings.ContainsFunc(word, unicode.IsControl):
		return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
	}
	return "$'" + escaped(word) + "'"
}

// escaped returns word as it is written between $' and '.
func escaped(word string) string {
	var b strings.Builder
	for i, r := range word {
		switch _, size := utf8.DecodeRuneInString(word[i:]); {
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == '\'', r == '\\':
			b.WriteString(`\` + string(r))
		case unicode.IsControl(r), r == utf8.RuneError && size == 1:
			for _, c := range []byte(word[i : i+size]) {
				fmt.Fprintf(&b, `\x%02x`, c)
			}
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}
