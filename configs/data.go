package configs

import (
	"errors"
	"fmt"
	"io/fs"

	"headroom/model/data"
)

// goroot is the data.path that stands for the source of the Go toolchain.
const goroot = "goroot"

// getIDX is where the files of the mnist preset come from.
const getIDX = "Debian's package dataset-fashion-mnist installs such files in /usr/share/datasets/fashion-mnist"

// OpenData reads the data that c names. Data other than data.fingerprint says,
// or too small for one step, is an error.
func (c *Config) OpenData() (data.Set, error) {
	set, err := c.openSet()
	if err != nil {
		return nil, err
	}
	if want := c.Data.Fingerprint; want != "" && set.Fingerprint() != want {
		return nil, fmt.Errorf("open data: data.fingerprint: %s: the data at hand is %s; give the run the data it began with, or start another run",
			want, set.Fingerprint())
	}
	if set.Len() < c.Batch.Effective {
		return nil, fmt.Errorf("open data: %d samples, fewer than batch.effective (%d); give more data or a smaller effective batch",
			set.Len(), c.Batch.Effective)
	}
	return set, nil
}

func (c *Config) openSet() (data.Set, error) {
	d := c.Data
	switch d.Kind {
	case "idx":
		set, err := data.OpenIDX(data.IDXOptions{Path: d.Path, Classes: d.Classes, Limit: d.Samples})
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%w; %s, or set data.path", err, getIDX)
		}
		return set, err
	case "blobs":
		return data.NewBlobs(data.BlobOptions{Seed: c.Seed, Samples: d.Samples, Features: d.Features, Classes: d.Classes})
	}
	path := d.Path
	if path == goroot {
		var err error
		if path, err = data.GoSource(); err != nil {
			return nil, err
		}
	}
	set, err := data.OpenText(data.TextOptions{Path: path, Glob: d.Glob, Limit: d.Limit, Context: c.Model.Context})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w; set data.path to a file or folder of text", err)
	}
	return set, err
}
