package exits

import (
	"regexp"
	"strconv"
	"strings"

	"headroom/memory"
)

// failureNumbers holds the numbers in a memory error. A number that the error does not
// give is 0.
type failureNumbers struct {
	requested memory.Bytes
	stats     memory.Stats
	others    string // the other process that holds the most, in words; "" if there is none
	device    int    // -1 if the error does not name one
}

const sizeText = `([\d.,]+ ?(?:[KMGTP]i?B?|[Bb]ytes|B)\b)`

var (
	requestedText = anyOf(
		`[Tt]ried to allocate `+sizeText,
		`Requested\s*: `+sizeText,
		`trying to allocate `+sizeText,
		`allocating ([\d.,]+ ?(?:MiB|GiB|bytes))`,
		`allocate request for `+sizeText,
		`reserve `+sizeText+` at the bottom`,
		`you tried to allocate `+sizeText,
		`Unable to allocate `+sizeText,
		`Cannot allocate `+sizeText+` memory`,
		`failed to allocate [\d.]+[KMGT]? \((\d+ bytes)\)`,
		`size::(\d+) `,
		`CUDA calloc (\d+ bytes)`,
		`Invalid buffer size: `+sizeText,
		`memory allocation of (\d+ bytes) failed`,
		`of total size `+sizeText,
	)
	capacityText = anyOf(
		`total capacity of `+sizeText, sizeText+` total capacity`, `Device limit\s*: `+sizeText, `max allowed: `+sizeText, `total: (\d+)`,
		`of `+sizeText+` hbm`,
	)
	limitText     = anyOf(sizeText+` allowed`, `PyTorch limit[^:]{0,60}: `+sizeText)
	freeText      = anyOf(`of which `+sizeText+` is free`, sizeText+` free;`, `Free \(according to CUDA\): `+sizeText, `\(free: (\d+)`, `available memory is only `+sizeText, `There are `+sizeText+` free`)
	allocatedText = anyOf(`Of the allocated memory `+sizeText+` is allocated`, sizeText+` already allocated`, `Currently allocated\s*: `+sizeText, `MPS allocated: `+sizeText, sizeText+` memory has been allocated`, `allocated so far: `+sizeText)
	unusedText    = anyOf(sizeText + ` is reserved by [A-Za-z]+ but unallocated`)
	reservedText  = anyOf(sizeText + ` reserved in total`)
	cachedText    = anyOf(sizeText + ` cached\)`)
	itselfText    = anyOf(`this process has ` + sizeText)
	processText   = regexp.MustCompile(`Process (\d+) has ` + sizeText + ` memory in use`)
	deviceText    = anyOf(`\b[GNX]PU (\d+) has a total`, `\((?:GPU|NPU|XPU) (\d+);`, `on device(?: ordinal)? (\d+)\b`, `\bon GPU (\d+)\b`,
		`device:GPU:(\d+)`, `\bcuda:(\d+)\b`, `\bGPU[ _](\d+)\b`)
)

// anyOf returns the patterns as regular expressions. Earlier patterns take precedence over later ones. In PyTorch's messages a
// number is followed by a unit; a number without a unit is in bytes.
func anyOf(patterns ...string) []*regexp.Regexp {
	all := make([]*regexp.Regexp, len(patterns))
	for i, p := range patterns {
		all[i] = regexp.MustCompile(p)
	}
	return all
}

func firstMatch(patterns []*regexp.Regexp, text string) string {
	for _, p := range patterns {
		if at := p.FindStringSubmatch(text); at != nil {
			return at[1]
		}
	}
	return ""
}

func amountIn(patterns []*regexp.Regexp, text string) memory.Bytes {
	return binaryBytes(firstMatch(patterns, text))
}

// binaryBytes parses an amount of memory as frameworks print it: "GB", "G" and "GiB" all
// mean 2³⁰ bytes. It returns 0 for text that is not an amount, and for amounts too large
// to be real.
func binaryBytes(s string) memory.Bytes {
	cut := strings.LastIndexAny(s, "0123456789.,") + 1
	unit := memory.Bytes(1)
	if rest := strings.ToUpper(strings.TrimSpace(s[cut:])); rest != "" {
		unit = map[byte]memory.Bytes{'K': memory.KiB, 'M': memory.MiB, 'G': memory.GiB, 'T': memory.TiB, 'P': 1024 * memory.TiB, 'B': 1}[rest[0]]
	}
	n, err := strconv.ParseFloat(strings.TrimRight(strings.ReplaceAll(s[:cut], ",", ""), "."), 64)
	// PyTorch prints an unset limit as 2⁶⁴ bytes. No machine has 2⁶⁰ bytes of memory.
	if b := n * float64(unit); err == nil && b >= 0 && b < 1<<60 {
		return memory.Bytes(b)
	}
	return 0
}

// readAmounts extracts the numbers from a memory error.
func readAmounts(text string) failureNumbers {
	text = oneLine(text)
	a := failureNumbers{requested: amountIn(requestedText, text), device: -1}
	if a.requested == 0 {
		a.requested = tensorBytes(text)
	}
	s := &a.stats
	s.Capacity, s.Free, s.Allocated = amountIn(capacityText, text), amountIn(freeText, text), amountIn(allocatedText, text)
	s.Reserved = amountIn(reservedText, text)
	if s.Reserved == 0 && s.Allocated > 0 {
		s.Reserved = s.Allocated + amountIn(unusedText, text) + amountIn(cachedText, text)
	}
	if limit := amountIn(limitText, text); limit > 0 && (s.Capacity == 0 || limit < s.Capacity) {
		s.Capacity = limit
		s.Free = min(s.Free, max(0, limit-s.Reserved))
	}
	s.Foreign, a.others = othersOf(text, s.Reserved)
	if n, err := strconv.Atoi(firstMatch(deviceText, text)); err == nil {
		a.device = n
	}
	return a
}

// othersOf returns how much memory other processes hold, according to PyTorch's message,
// and describes the one that holds the most. In a container, PyTorch does not recognise
// its own process in the list that it prints, because NVML reports the host's process
// ids. The message then lacks "this process has". In that case, only a process that holds
// at least reserved, the amount that PyTorch's allocator has reserved, can be PyTorch's
// own. othersOf takes the smallest such process to be PyTorch's own.
func othersOf(text string, reserved memory.Bytes) (sum memory.Bytes, others string) {
	all := processText.FindAllStringSubmatch(text, 64)
	own := -1
	if amountIn(itselfText, text) == 0 {
		for i, p := range all {
			if held := binaryBytes(p[2]); held >= reserved && (own < 0 || held < binaryBytes(all[own][2])) {
				own = i
			}
		}
	}
	most := memory.Bytes(0)
	for i, p := range all {
		held := binaryBytes(p[2])
		if i == own {
			continue
		}
		sum += held
		if held > most {
			most, others = held, "process "+p[1]+" holds "+held.String()
		}
	}
	return sum, others
}

var tensorShape = regexp.MustCompile(`tensor with shape ?\[([\d,]{1,100})\] and type (\w+)`)

// tensorBytes returns the size of the tensor that TensorFlow's error names. It returns 0
// if the error names none, or if the size is too large for any tensor.
func tensorBytes(text string) memory.Bytes {
	at := tensorShape.FindStringSubmatch(text)
	if at == nil {
		return 0
	}
	bytes := map[string]float64{"double": 8, "int64": 8, "complex64": 8, "half": 2, "bfloat16": 2, "int8": 1, "uint8": 1, "bool": 1}[at[2]]
	if bytes == 0 {
		bytes = 4
	}
	for _, dim := range strings.Split(at[1], ",") {
		n, _ := strconv.ParseFloat(dim, 64)
		bytes *= n
	}
	if bytes >= 1<<60 {
		return 0
	}
	return memory.Bytes(bytes)
}
