package worker

// Batches are what a script's loaders have given until its first step was over.
type Batches struct {
	Look    int      `json:"look,omitempty"`    // how many batches of a loader were to be looked at before it gave its first; 0 is none
	Read    int      `json:"read"`              // how many were looked at
	Tensors bool     `json:"tensors"`           // they have tensors
	Differ  bool     `json:"differ,omitempty"`  // not all have as many tensors, with as many dimensions
	Lengths []Length `json:"lengths,omitempty"` // what differs between them
}

// Length is a dimension of a tensor that is not as large in each batch, and not in proportion to the rows.
type Length struct {
	Tensor string `json:"tensor"` // its key, or which tensor of the batch it is
	Dim    int    `json:"dim"`
	Least  int    `json:"least"`
	Most   int    `json:"most"`
	First  int    `json:"first"`          // in the loader's first batch
	Used   int    `json:"used,omitempty"` // in the batch that is tried on; 0 if that is not known
	Each   int    `json:"each,omitempty"` // elements of a row of that tensor there; 0 if that is not known
}

// lengthsMost is the largest number of lengths that are kept.
const lengthsMost = 4

// possible returns b without what cannot be.
func (b Batches) possible() Batches {
	b.Lengths = b.Lengths[:min(len(b.Lengths), lengthsMost)]
	numbers := []*int{&b.Look, &b.Read}
	for i := range b.Lengths {
		l := &b.Lengths[i]
		l.Tensor = l.Tensor[:min(len(l.Tensor), nameMost)]
		numbers = append(numbers, &l.Dim, &l.Least, &l.Most, &l.First, &l.Used, &l.Each)
	}
	for _, n := range numbers {
		if *n < 0 || *n > rowsMost {
			*n = 0
		}
	}
	return b
}

// nameMost is the longest name of a tensor that is kept.
const nameMost = 100
