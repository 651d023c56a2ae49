package wrap

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
)

// broken says how a checkpoint's file is incomplete, as far as the file's format can show
// it. It returns "" if it finds no problem. It reads no weights.
func broken(files fs.FS, name string) string {
	info, err := fs.Stat(files, name)
	if err != nil {
		return err.Error()
	}
	if info.IsDir() {
		return ""
	}
	if info.Size() == 0 {
		return path.Base(name) + " is empty"
	}
	f, err := files.Open(name)
	if err != nil {
		return err.Error()
	}
	switch path.Ext(name) {
	case ".json":
		err = wholeJSON(files, f, name)
	case ".safetensors":
		err = wholeTensors(f, info.Size())
	default:
		err = wholeArchive(f, info.Size())
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return path.Base(name) + " " + err.Error()
	}
	return ""
}

// wholeJSON returns an error if the file is not a complete JSON document. In an index of
// shards, every shard that the index names must exist and be complete, too.
func wholeJSON(files fs.FS, f io.Reader, name string) error {
	var index struct {
		Shards map[string]any `json:"weight_map"`
	}
	content, err := io.ReadAll(f)
	if err != nil {
		return err
	}
	if !json.Valid(content) {
		return errors.New("is cut short")
	}
	if !strings.HasSuffix(name, ".index.json") {
		return nil
	}
	if err := json.Unmarshal(content, &index); err != nil {
		return fmt.Errorf("is not an index: %w", err)
	}
	seen := map[any]bool{}
	for _, value := range index.Shards {
		shard, ok := value.(string)
		if !ok || seen[shard] {
			continue
		}
		seen[shard] = true
		if _, err := fs.Stat(files, path.Join(path.Dir(name), shard)); err != nil {
			return fmt.Errorf("names %s, which does not exist", shard)
		}
		if problem := broken(files, path.Join(path.Dir(name), shard)); problem != "" {
			return fmt.Errorf("names a broken file: %s", problem)
		}
	}
	return nil
}

// mostHeader is the longest safetensors header that is accepted, in bytes. No model has a
// header nearly as long.
const mostHeader = 256 << 20

// wholeTensors returns an error if a safetensors file has fewer bytes than its header
// says. The file consists of 8 bytes for the header's length, the header in JSON, and the
// data up to the largest offset in the header.
func wholeTensors(f io.Reader, size int64) error {
	var length uint64
	if err := binary.Read(f, binary.LittleEndian, &length); err != nil || length > mostHeader || int64(length)+8 > size {
		return errors.New("is cut short")
	}
	header := make([]byte, length)
	if _, err := io.ReadFull(f, header); err != nil {
		return errors.New("is cut short")
	}
	var tensors map[string]struct {
		Offsets []int64 `json:"data_offsets"`
	}
	if err := json.Unmarshal(header, &tensors); err != nil {
		return errors.New("has a header that cannot be read")
	}
	end := int64(length) + 8
	for _, t := range tensors {
		if len(t.Offsets) == 2 {
			end = max(end, int64(length)+8+t.Offsets[1])
		}
	}
	if size < end {
		return fmt.Errorf("is cut short: %d of %d bytes", size, end)
	}
	return nil
}

// wholeArchive returns an error if a file begins as a zip archive but does not end as
// one. torch.save writes such archives, with the directory last. Files of other formats
// are accepted.
func wholeArchive(f fs.File, size int64) error {
	magic := make([]byte, 4)
	if n, err := io.ReadFull(f, magic); err != nil || !bytes.Equal(magic[:n], []byte("PK\x03\x04")) {
		return nil // another format, whose length cannot be checked
	}
	at, ok := f.(io.ReaderAt)
	if !ok {
		return nil
	}
	tail := make([]byte, min(size, 65557)) // the record at the end of a zip archive, with the longest possible comment
	if _, err := at.ReadAt(tail, size-int64(len(tail))); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if !bytes.Contains(tail, []byte("PK\x05\x06")) {
		return errors.New("is cut short: the end of its archive is missing")
	}
	return nil
}
