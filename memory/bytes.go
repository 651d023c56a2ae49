package memory

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Bytes is an amount of memory in bytes.
type Bytes int64

// The binary units of memory. [Bytes.String] prints amounts in them.
const (
	KiB Bytes = 1 << 10
	MiB Bytes = 1 << 20
	GiB Bytes = 1 << 30
	TiB Bytes = 1 << 40
)

var units = map[string]Bytes{
	"B":   1,
	"KB":  1e3,
	"MB":  1e6,
	"GB":  1e9,
	"TB":  1e12,
	"KIB": KiB,
	"MIB": MiB,
	"GIB": GiB,
	"TIB": TiB,
}

// Parse reads an amount such as "24GiB", "1.5 GB" or "512 MiB". The suffix is
// mandatory and its case is ignored; GiB (2³⁰) and GB (10⁹) are different
// units. A fraction of a byte is rounded to the nearest byte. Negative amounts
// and amounts above 2⁶³−1 are errors.
func Parse(s string) (Bytes, error) {
	text := strings.TrimSpace(s)
	cut := strings.LastIndexAny(text, "0123456789.") + 1
	number, suffix := text[:cut], strings.TrimSpace(text[cut:])
	if suffix == "" {
		return 0, fmt.Errorf("size %q has no unit: write B, KB, MB, GB, TB, KiB, MiB, GiB or TiB, as in 24GiB", s)
	}
	unit, ok := units[strings.ToUpper(suffix)]
	if !ok {
		return 0, fmt.Errorf("size %q has the unknown unit %q: write B, KB, MB, GB, TB, KiB, MiB, GiB or TiB, as in 24GiB", s, suffix)
	}
	value, err := strconv.ParseFloat(number, 64)
	if err != nil || strings.ContainsAny(number, "eExXpPnN_") {
		return 0, fmt.Errorf("size %q is not a number with a unit, as in 24GiB", s)
	}
	amount := math.Round(value * float64(unit))
	if amount < 0 || amount >= math.MaxInt64 {
		return 0, fmt.Errorf("size %q is out of range: must be from 0B to 8388607TiB", s)
	}
	return Bytes(amount), nil
}

// String returns the amount in the largest binary unit that fits into it at least once,
// with at most one decimal: "25.1 GiB", "512 MiB", "17 B". It loses precision; use
// [Bytes.MarshalText] to store an amount.
func (b Bytes) String() string {
	for _, u := range []struct {
		size Bytes
		name string
	}{{TiB, "TiB"}, {GiB, "GiB"}, {MiB, "MiB"}, {KiB, "KiB"}} {
		if b >= u.size || b <= -u.size {
			return trim(float64(b)/float64(u.size)) + " " + u.name
		}
	}
	return strconv.FormatInt(int64(b), 10) + " B"
}

func trim(v float64) string {
	return strings.TrimSuffix(strconv.FormatFloat(v, 'f', 1, 64), ".0")
}

// MarshalText writes the amount exactly, in the largest binary unit that divides it
// ("24GiB"), or in bytes if none does.
func (b Bytes) MarshalText() ([]byte, error) {
	for _, u := range []struct {
		size Bytes
		name string
	}{{TiB, "TiB"}, {GiB, "GiB"}, {MiB, "MiB"}, {KiB, "KiB"}} {
		if b != 0 && b%u.size == 0 {
			return fmt.Appendf(nil, "%d%s", b/u.size, u.name), nil
		}
	}
	return fmt.Appendf(nil, "%dB", int64(b)), nil
}

// UnmarshalText reads an amount with its unit, as [Parse] does.
func (b *Bytes) UnmarshalText(text []byte) error {
	v, err := Parse(string(text))
	if err != nil {
		return err
	}
	*b = v
	return nil
}

// MarshalJSON writes the amount as a whole number of bytes, the form in which
// journals and metrics hold it.
func (b Bytes) MarshalJSON() ([]byte, error) {
	return strconv.AppendInt(nil, int64(b), 10), nil
}

// UnmarshalJSON reads a whole number of bytes.
func (b *Bytes) UnmarshalJSON(text []byte) error {
	v, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil {
		return fmt.Errorf("size %s is not a whole number of bytes", text)
	}
	*b = Bytes(v)
	return nil
}
