package checkpoints

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"headroom/wrap/command"
)

// broken says how a checkpoint's file is incomplete, as far as the file's format can show
// it. It returns "" if it finds no problem. It reads no weights.
func broken(files fs.FS, name string) string {
	f, info, err := command.OpenFile(files, name)
	if err != nil {
		return reason(err)
	}
	switch {
	case info.IsDir():
	case info.Size() == 0:
		err = errors.New("is empty")
	default:
		err = whole(files, f, name, info.Size())
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return path.Base(name) + " " + err.Error()
	}
	return ""
}

// whole returns an error if the file f shows that it is not complete. The format is known by
// the end of the name or by the first bytes. A file of any other format is accepted.
func whole(files fs.FS, f fs.File, name string, size int64) error {
	switch path.Ext(name) {
	case ".json", ".jsonl":
		return wholeJSON(files, f, name)
	case ".safetensors":
		return wholeTensors(f, size)
	}
	at, ok := f.(io.ReaderAt)
	if !ok {
		return nil
	}
	begin := make([]byte, min(size, 512))
	if _, err := at.ReadAt(begin, 0); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	switch {
	case bytes.HasPrefix(begin, []byte("PK\x03\x04")):
		return wholeArchive(at, size)
	case bytes.HasPrefix(begin, []byte("\x93NUMPY")):
		return wholeArray(at, begin, size)
	case bytes.HasPrefix(begin, []byte("\x1f\x8b")) && size <= mostUnpacked:
		return wholeGzip(at, size)
	case len(begin) == 512 && string(begin[257:262]) == "ustar":
		return wholeTape(at, size)
	case isPickle(begin) && slices.Contains(pickled, path.Ext(name)):
		return wholePickle(at, size)
	}
	return nil
}

// wholeJSON returns an error if the file does not end where its JSON ends. In an index of
// shards, every shard that the index names must exist and be complete, too.
func wholeJSON(files fs.FS, f io.Reader, name string) error {
	var index struct {
		Shards map[string]any `json:"weight_map"`
	}
	content, err := io.ReadAll(f)
	if err != nil {
		return err
	}
	if !closed(content) {
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

// closed reports whether every bracket and every string in a JSON text is closed, and whether
// there is any text at all. So a file that was cut short is found, while one that has several
// documents, or Python's NaN and Infinity, is accepted.
func closed(text []byte) bool {
	depth, quoted := 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == 0: // a block that was never written, after a crash of the machine
			return false
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			depth--
		}
	}
	return depth == 0 && !quoted && len(bytes.TrimSpace(text)) > 0
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

// errCut says of a file that its end is missing.
var errCut = errors.New("is cut short: its end is missing")

// wholeArchive returns an error if a zip archive does not end as one. torch.save and
// numpy.savez write such archives, with the directory last.
func wholeArchive(f io.ReaderAt, size int64) error {
	tail := make([]byte, min(size, 65557)) // the record at the end of a zip archive, with the longest possible comment
	if _, err := f.ReadAt(tail, size-int64(len(tail))); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if !bytes.Contains(tail, []byte("PK\x05\x06")) {
		return errors.New("is cut short: the end of its archive is missing")
	}
	return nil
}

// The header of a .npy file says how long the file is.
var (
	itemSize   = regexp.MustCompile(`'descr': *'[<>|=]?([a-zA-Z])(\d+)'`)
	arrayShape = regexp.MustCompile(`'shape': *\(([\d, ]*)\)`)
)

// wholeArray returns an error if a .npy file has fewer bytes than its header says. An array
// with a type that it does not know is accepted.
func wholeArray(f io.ReaderAt, begin []byte, size int64) error {
	if len(begin) < 12 {
		return errCut
	}
	at, length := int64(10), int64(binary.LittleEndian.Uint16(begin[8:]))
	if begin[6] > 1 {
		at, length = 12, int64(binary.LittleEndian.Uint32(begin[8:]))
	}
	if at+length > size {
		return errCut
	}
	header := make([]byte, min(length, 64<<10))
	if _, err := f.ReadAt(header, at); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	item, shape := itemSize.FindSubmatch(header), arrayShape.FindSubmatch(header)
	if item == nil || shape == nil {
		return nil
	}
	bytesOf, _ := strconv.ParseInt(string(item[2]), 10, 64)
	if string(item[1]) == "U" {
		bytesOf *= 4
	}
	for _, n := range strings.FieldsFunc(string(shape[1]), func(r rune) bool { return r == ',' || r == ' ' }) {
		count, err := strconv.ParseInt(n, 10, 64)
		if err != nil || count > 0 && bytesOf > math.MaxInt64/count {
			return nil
		}
		bytesOf *= count
	}
	if size-at-length < bytesOf {
		return errCut
	}
	return nil
}

// mostUnpacked is the size up to which a gzip file is read to its end, which is the only way
// to see that it has one.
const mostUnpacked = 16 << 20

func wholeGzip(f io.ReaderAt, size int64) error {
	z, err := gzip.NewReader(io.NewSectionReader(f, 0, size))
	if err == nil {
		_, err = io.Copy(io.Discard, z)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return errCut
	}
	return nil // another error shows that the file is something else, and not that it is cut short
}

// wholeTape returns an error if a tar archive does not end with two blocks of zeros.
func wholeTape(f io.ReaderAt, size int64) error {
	tail := make([]byte, min(size, 1024))
	if _, err := f.ReadAt(tail, size-int64(len(tail))); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if size%512 != 0 || len(bytes.Trim(tail, "\x00")) > 0 {
		return errCut
	}
	return nil
}

// pickled are the ends of names under which Python programs save pickles.
var pickled = []string{".pkl", ".pickle", ".joblib", ".pt", ".pth", ".bin", ".ckpt"}

// isPickle reports whether a file begins as a Python pickle. The format that torch.save wrote
// until version 1.6 begins as one, too, but has raw data behind it, and so does not count.
func isPickle(begin []byte) bool {
	old := []byte("\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.")
	return len(begin) > 2 && begin[0] == 0x80 && begin[1] >= 2 && begin[1] <= 5 && !bytes.HasPrefix(begin, old)
}

// wholePickle returns an error if a pickle does not end with the instruction that ends every
// pickle.
func wholePickle(f io.ReaderAt, size int64) error {
	var last [1]byte
	if _, err := f.ReadAt(last[:], size-1); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if last[0] != '.' {
		return errCut
	}
	return nil
}
