package profile

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"strings"
)

// Amounts maps the names in an expression to their values.
type Amounts map[string]int

// Evaluate computes an expression such as "5 * 8", made of integers, names, + - * / // %
// and parentheses. / and // mean the same division. A division that leaves a remainder
// is an error, as is any other kind of expression.
func Evaluate(text string, of Amounts) (int, error) {
	if len(text) > 200 {
		return 0, errors.New("an expression may have at most 200 bytes")
	}
	e, err := parser.ParseExpr(strings.ReplaceAll(text, "//", "/"))
	if err != nil {
		return 0, fmt.Errorf("%q is not an integer expression", text)
	}
	return compute(e, of)
}

// Condition reports whether a comparison such as "global % (micro*world) == 0" holds.
func Condition(text string, of Amounts) (bool, error) {
	left, right, ok := strings.Cut(text, "==")
	if !ok {
		return false, errors.New("not a comparison; write LEFT == RIGHT")
	}
	l, err := Evaluate(left, of)
	if err != nil {
		return false, err
	}
	r, err := Evaluate(right, of)
	return l == r, err
}

func compute(e ast.Expr, of Amounts) (int, error) {
	switch e := e.(type) {
	case *ast.ParenExpr:
		return compute(e.X, of)
	case *ast.Ident:
		if n, ok := of[e.Name]; ok {
			return n, nil
		}
		return 0, fmt.Errorf("%s is not known", e.Name)
	case *ast.BasicLit:
		n, err := strconv.ParseInt(strings.ReplaceAll(e.Value, "_", ""), 10, 32)
		if err != nil || e.Kind != token.INT {
			return 0, fmt.Errorf("%s is not an integer", e.Value)
		}
		return int(n), nil
	case *ast.BinaryExpr:
		return operation(e, of)
	}
	return 0, errors.New("only integers, + - * // % and parentheses are allowed")
}

func operation(e *ast.BinaryExpr, of Amounts) (int, error) {
	l, err := compute(e.X, of)
	if err != nil {
		return 0, err
	}
	r, err := compute(e.Y, of)
	if err != nil {
		return 0, err
	}
	const most = 1 << 31
	switch {
	case l > most || r > most || l < -most || r < -most:
		return 0, errors.New("too large: must be within ±2147483648")
	case e.Op == token.ADD:
		return l + r, nil
	case e.Op == token.SUB:
		return l - r, nil
	case e.Op == token.MUL:
		return l * r, nil
	case r == 0:
		return 0, errors.New("division by zero")
	case e.Op == token.REM:
		return l % r, nil
	case e.Op == token.QUO && l%r == 0:
		return l / r, nil
	case e.Op == token.QUO:
		return 0, fmt.Errorf("%d is not divisible by %d", l, r)
	}
	return 0, fmt.Errorf("%s is not supported", e.Op)
}

// mostAmount is the largest value that a knob may have. It is far larger than any batch,
// and its square still fits in an int.
const mostAmount = 1 << 30

// Amount parses a knob's value: an integer, an expression of integers, or, for a List, a
// list with one such element.
func (t Type) Amount(text string) (int, error) {
	bare := strings.Trim(strings.TrimSpace(text), `"'`)
	if t == List {
		bare = strings.TrimSuffix(strings.TrimPrefix(bare, "["), "]")
		if strings.Contains(bare, ",") {
			return 0, errors.New("a list of several values is a schedule, which headroom does not change; give a single value")
		}
		bare = strings.TrimSpace(bare)
	}
	switch {
	case bare == "":
		return 0, errors.New("present but empty; give a number")
	case strings.Contains(bare, "$"):
		return 0, errors.New("interpolations are not resolved; override this one with a number")
	case len(bare) > 1 && bare[0] == '0' && strings.Trim(bare, "0123456789_") == "":
		return 0, fmt.Errorf("%s: begins with 0, which some read as an octal number; write it without", bare)
	}
	n, err := Evaluate(bare, nil)
	if err != nil {
		return 0, err
	}
	if n < 1 || n > mostAmount {
		return 0, fmt.Errorf("%d: must be from 1 to %d", n, mostAmount)
	}
	return n, nil
}

// AmountsOf parses a list of positive integers, separated by commas or spaces.
func AmountsOf(text string) (all []int, err error) {
	bare := strings.Trim(strings.TrimSpace(text), "[]")
	for _, one := range strings.FieldsFunc(bare, func(r rune) bool { return r == ',' || r == ' ' }) {
		n, err := Int.Amount(one)
		if err != nil {
			return nil, err
		}
		all = append(all, n)
	}
	return all, nil
}

// Write returns n in the notation of the old value: in brackets if that was a list in
// brackets.
func (t Type) Write(n int, old string) string {
	if t == List && strings.HasPrefix(strings.TrimSpace(old), "[") {
		return fmt.Sprintf("[%d]", n)
	}
	return strconv.Itoa(n)
}

// versionNumbers returns the number at the start of each part of a version such as
// "1.16.2". It stops at the first part that does not begin with a digit. It returns nil
// if not even the first part begins with one.
func versionNumbers(version string) []int {
	var all []int
	for _, part := range strings.Split(version, ".") {
		digits := part[:len(part)-len(strings.TrimLeft(part, "0123456789"))]
		n, err := strconv.Atoi(digits)
		if err != nil {
			break
		}
		all = append(all, n)
	}
	return all
}

// InFile returns a value as it is written in a file: files spell booleans true and false,
// whereas the command lines of frameworks spell them True and False.
func (t Type) InFile(value string) string {
	if t == Bool || t == Switch {
		return strings.ToLower(value)
	}
	return value
}

// Older reports whether version have is older than version need. It compares only the
// numbers in the two versions.
func Older(have, need string) bool {
	return slices.Compare(versionNumbers(have), versionNumbers(need)) < 0
}
