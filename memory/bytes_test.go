package memory

import (
	"encoding/json"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]Bytes{
		"24GiB":     24 << 30,
		"24 GiB":    24 << 30,
		"24GB":      24e9,
		" 1.5 gib ": 3 << 29,
		"512MiB":    512 << 20,
		"640KB":     640e3,
		"0B":        0,
		"17B":       17,
		"2TiB":      2 << 40,
		".5KiB":     512,
	} {
		if got, err := Parse(text); err != nil || got != want {
			t.Errorf("Parse(%q) = %d, %v; want %d", text, got, err, want)
		}
	}
	for text, says := range map[string]string{
		"24":         "no unit",
		"":           "no unit",
		"GiB":        "not a number",
		"24G":        "unknown unit",
		"24 parsecs": "unknown unit",
		"-1GiB":      "out of range",
		"1e3GiB":     "not a number",
		"1.2.3GiB":   "not a number",
		"9999999TiB": "out of range",
		"24%":        "unknown unit",
	} {
		if got, err := Parse(text); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("Parse(%q) = %d, %v; want an error that says %q", text, got, err, says)
		}
	}
}

func TestString(t *testing.T) {
	for b, want := range map[Bytes]string{
		0: "0 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.5 KiB", 24 << 30: "24 GiB",
		251 * (1 << 30) / 10: "25.1 GiB", -3 << 20: "-3 MiB", 1 << 42: "4 TiB",
	} {
		if got := b.String(); got != want {
			t.Errorf("%d: %q, want %q", int64(b), got, want)
		}
	}
}

func TestTextAndJSONRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := Bytes(rapid.Int64Range(0, 1<<52).Draw(t, "bytes"))
		text, err := b.MarshalText()
		if err != nil {
			t.Fatal(err)
		}
		var back Bytes
		if err := back.UnmarshalText(text); err != nil || back != b {
			t.Fatalf("%d → %s → %d, %v", b, text, back, err)
		}
		line, err := json.Marshal(struct{ B Bytes }{b})
		if err != nil {
			t.Fatal(err)
		}
		var record struct{ B Bytes }
		if err := json.Unmarshal(line, &record); err != nil || record.B != b {
			t.Fatalf("%d → %s → %d, %v", b, line, record.B, err)
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"24GiB", "1.5 GB", "", "-1B", "NaNGiB", "0x10MiB", "١GiB"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if b, err := Parse(text); err == nil && b < 0 {
			t.Errorf("Parse(%q) = %d", text, b)
		}
	})
}
