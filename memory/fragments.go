package memory

import "fmt"

// Fragments says how what is free in an allocator's segments lies between what is in use.
type Fragments struct {
	Pieces     Bytes        `json:"pieces"`               // free, in segments of which something is in use; the allocator cannot give them back
	Number     int          `json:"number"`               // of pieces
	Largest    Bytes        `json:"largest"`              // the largest block that the allocator could hand out as it is
	Sizes      []PieceSizes `json:"sizes,omitempty"`      // smallest first
	Pages      Bytes        `json:"pages,omitempty"`      // at least so much of Pieces could serve any request with expandable segments, which map whole pages anew
	Freed      Bytes        `json:"freed,omitempty"`      // of Pieces or beside them: given back between the failure and these figures
	Expandable bool         `json:"expandable,omitempty"` // the segments are expandable already
}

// PieceSizes are the pieces that have less than Below bytes, but not less than the smaller sizes.
type PieceSizes struct {
	Below  Bytes `json:"below"` // 0 for the largest size
	Number int   `json:"number"`
	Bytes  Bytes `json:"bytes"`
}

// String says in how many pieces free memory lies, which sizes hold most of it, and how large the
// largest is.
func (f Fragments) String() string {
	text := fmt.Sprintf("in %d pieces", f.Number)
	if f.Number == 1 {
		text = "in 1 piece"
	}
	var most PieceSizes
	for _, s := range f.Sizes {
		if s.Bytes > most.Bytes {
			most = s
		}
	}
	switch {
	case f.Number < 2 || most.Bytes == 0:
	case most.Below == 0:
		text += fmt.Sprintf(", %v of it in the %d largest", most.Bytes, most.Number)
	default:
		text += fmt.Sprintf(", %v of it in %d of less than %v", most.Bytes, most.Number, most.Below)
	}
	if f.Largest > 0 && f.Freed == 0 {
		text += fmt.Sprintf(", the largest block %v", f.Largest)
	}
	return text
}

// WouldHold reports whether expandable segments would have held a request, with so much free on the
// device: whole pages of the pieces, without what was given back only after the failure, are enough.
func (f Fragments) WouldHold(requested, free Bytes) bool {
	return !f.Expandable && requested > 0 && f.Largest < requested+f.Freed && requested <= free+f.Pages-f.Freed
}

// Hint is what the user of PyTorch can do about a failure for want of a large enough block; "" if
// that is done already. f is nil if it is not known how the free memory lies.
func (f *Fragments) Hint(requested, free Bytes) string {
	const set = "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
	switch {
	case f == nil:
		return set
	case f.Expandable:
		return ""
	case f.WouldHold(requested, free):
		return set + fmt.Sprintf(", which would have held it: at least %v of the pieces are whole pages, which can then be put together", f.Pages-f.Freed)
	}
	return set + ", which may put pieces together"
}
