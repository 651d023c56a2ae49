package job

import (
	"errors"
	"fmt"
	"io/fs"

	"headroom/configs"
	"headroom/machine"
	"headroom/model/data"
)

// openData reads the data that c names. It is an error if the data does not match
// data.fingerprint, or has too few samples for one step. If the data needs more memory
// than this machine has left, the error is a *[data.TooLargeError].
func openData(c *configs.Config) (data.Set, error) {
	set, err := openSet(c)
	if err != nil {
		return nil, err
	}
	if want := c.Data.Fingerprint; want != "" && set.Fingerprint() != want {
		return nil, fmt.Errorf("open data: data.fingerprint: %s: the data at hand has the fingerprint %s; give the run the data it began with, or start another run",
			want, set.Fingerprint())
	}
	if set.Len() < c.Batch.Effective {
		return nil, fmt.Errorf("open data: %d samples, fewer than batch.effective (%d); give more data or a smaller effective batch",
			set.Len(), c.Batch.Effective)
	}
	return set, nil
}

func openSet(c *configs.Config) (data.Set, error) {
	d, room := c.Data, machine.LookAtMemory().Room()
	switch d.Kind {
	case "idx":
		set, err := data.OpenIDX(data.IDXOptions{Path: d.Path, Classes: d.Classes, Limit: d.Samples, Room: room})
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%w; %s, or set data.path", err, configs.GetIDX)
		}
		return set, err
	case "blobs":
		return data.NewBlobs(data.BlobOptions{Seed: c.Seed, Samples: d.Samples, Features: d.Features, Classes: d.Classes})
	}
	path := d.Path
	if path == configs.GoRoot {
		var err error
		if path, err = data.GoSource(); err != nil {
			return nil, err
		}
	}
	set, err := data.OpenText(data.TextOptions{Path: path, Glob: d.Glob, Limit: d.Limit, Context: c.Model.Context, Room: room})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w; set data.path to a file or folder of text", err)
	}
	return set, err
}
