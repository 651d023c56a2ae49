package model

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
)

// A safetensors file consists of the length of the header as 8 bytes,
// little-endian; the header, a JSON object; and the tensors' raw little-endian
// contents, without gaps. The header gives the type, shape and place of each
// tensor. Under the key __metadata__ it may hold any strings.

// entry is the header's description of one tensor.
type entry struct {
	DType   string    `json:"dtype"`
	Shape   []int     `json:"shape"`
	Offsets [2]uint64 `json:"data_offsets"` // bytes [from, to) after the header
	name    string
}

// header is the header of a safetensors file. Its entries are in the order in which the
// file holds their contents.
type header struct {
	metadata map[string]string
	entries  []entry
}

const metadataKey = "__metadata__"

// headerLimit is the largest header that is read, in bytes. The reference
// implementation has the same limit.
const headerLimit = 100_000_000

// size returns the size of all contents together, in bytes.
func (h *header) size() uint64 {
	if len(h.entries) == 0 {
		return 0
	}
	return h.entries[len(h.entries)-1].Offsets[1]
}

// add appends a tensor after those already there. Each of its elements must take up 4
// bytes.
func (h *header) add(name, dtype string, shape ...int) {
	n := 1
	for _, d := range shape {
		n *= d
	}
	from := h.size()
	h.entries = append(h.entries, entry{DType: dtype, Shape: shape, Offsets: [2]uint64{from, from + 4*uint64(n)}, name: name})
}

func (h *header) write(w io.Writer) error {
	object := map[string]any{metadataKey: h.metadata}
	for _, e := range h.entries {
		object[e.name] = e
	}
	text, err := json.Marshal(object) // sorts the keys, so that equal states make equal files
	if err != nil {
		return err
	}
	// Spaces after the object make the contents start at a multiple of 8.
	text = append(text, bytes.Repeat([]byte(" "), -len(text)&7)...)
	_, err = w.Write(append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...))
	return err
}

var errCutShort = errors.New("the checkpoint is cut short")

// cutShort returns errCutShort if err is the end of the input, otherwise err
// itself.
func cutShort(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errCutShort
	}
	return err
}

func readHeader(r io.Reader) (*header, error) {
	var length [8]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, cutShort(err)
	}
	n := binary.LittleEndian.Uint64(length[:])
	if n > headerLimit {
		return nil, fmt.Errorf("not a safetensors file: a header of %d bytes", n)
	}
	var text bytes.Buffer // grows only as bytes arrive, so a false length costs no memory
	if _, err := io.CopyN(&text, r, int64(n)); err != nil {
		return nil, cutShort(err)
	}
	return parseHeader(text.Bytes())
}

func parseHeader(text []byte) (*header, error) {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(text, &object); err != nil {
		return nil, fmt.Errorf("not a safetensors file: garbled header: %w", err)
	}
	h := &header{}
	for name, value := range object {
		var err error
		if name == metadataKey {
			err = json.Unmarshal(value, &h.metadata)
		} else {
			e := entry{name: name}
			err = json.Unmarshal(value, &e)
			h.entries = append(h.entries, e)
		}
		if err != nil {
			return nil, fmt.Errorf("garbled header: %s: %w", name, err)
		}
	}
	slices.SortFunc(h.entries, func(a, b entry) int {
		if a.Offsets[0] < b.Offsets[0] {
			return -1
		}
		return 1
	})
	end := uint64(0)
	for _, e := range h.entries {
		if e.Offsets[0] != end || e.Offsets[1] < end {
			return nil, fmt.Errorf("garbled header: %s lies at %v, but should begin at %d", e.name, e.Offsets, end)
		}
		end = e.Offsets[1]
	}
	return h, nil
}
