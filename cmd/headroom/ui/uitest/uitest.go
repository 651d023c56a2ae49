// Package uitest helps to test what a user sees.
package uitest

import "strings"

// Terminal returns what a terminal shows after the given output, one string per row.
func Terminal(written string) []string {
	rows, row := []string{}, []rune{}
	column := 0
	text := strings.ReplaceAll(written, "\x1b[K", "\x00")
	for _, r := range text {
		switch r {
		case '\r':
			column = 0
		case '\x00':
			row = row[:min(column, len(row))]
		case '\n':
			rows, row, column = append(rows, string(row)), nil, 0
		default:
			row = append(row[:min(column, len(row))], append([]rune{r}, row[min(column+1, len(row)):]...)...)
			column++
		}
	}
	return append(rows, string(row))
}
