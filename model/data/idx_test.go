package data

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// idx returns the text of an IDX file of unsigned bytes with the given content
// and dimensions.
func idx(content []byte, dims ...uint32) string {
	b := []byte{0, 0, 8, byte(len(dims))}
	for _, d := range dims {
		b = binary.BigEndian.AppendUint32(b, d)
	}
	return string(append(b, content...))
}

func gz(s string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write([]byte(s))
	_ = z.Close()
	return b.String()
}

const (
	imageFile = "train-images-idx3-ubyte"
	labelFile = "train-labels-idx1-ubyte"
)

var (
	twoImages = idx([]byte{0, 255, 0, 255, 255, 255, 0, 0}, 2, 2, 2)
	twoLabels = idx([]byte{3, 1}, 2)
)

func TestIDX(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"plain": {imageFile: twoImages, labelFile: twoLabels},
		"gzip":  {imageFile + ".gz": gz(twoImages), labelFile + ".gz": gz(twoLabels)},
		"dots":  {"train-images.idx3-ubyte": twoImages, "train-labels.idx1-ubyte": twoLabels},
	} {
		t.Run(name, func(t *testing.T) {
			set, err := OpenIDX(IDXOptions{Path: folder(t, files), Classes: 4})
			if err != nil {
				t.Fatal(err)
			}
			if set.Len() != 2 || set.Shape() != (Shape{Features: 4, Classes: 4}) {
				t.Fatalf("%d samples of %+v", set.Len(), set.Shape())
			}
			s := set.Shape().New()
			for i, want := range []string{"[-1 1 -1 1] [3]", "[1 1 -1 -1] [1]"} {
				if err := set.Sample(i, s); err != nil {
					t.Fatal(err)
				}
				if got := fmt.Sprint(s.Features, s.Targets); got != want {
					t.Errorf("sample %d: %s, want %s", i, got, want)
				}
			}
		})
	}
}

func TestIDXLimit(t *testing.T) {
	dir := folder(t, map[string]string{imageFile: twoImages, labelFile: twoLabels})
	all, err := OpenIDX(IDXOptions{Path: dir, Classes: 4, Limit: 5})
	if err != nil {
		t.Fatal(err)
	}
	one, err := OpenIDX(IDXOptions{Path: dir, Classes: 4, Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	if all.Len() != 2 || one.Len() != 1 || all.Fingerprint() == one.Fingerprint() {
		t.Errorf("%d and %d samples, %s and %s", all.Len(), one.Len(), all.Fingerprint(), one.Fingerprint())
	}
}

func TestIDXOfOneShade(t *testing.T) {
	set, err := OpenIDX(IDXOptions{Classes: 2, Path: folder(t, map[string]string{
		imageFile: idx([]byte{7, 7}, 1, 1, 2), labelFile: idx([]byte{0}, 1)})})
	if err != nil {
		t.Fatal(err)
	}
	s := set.Shape().New()
	if err := set.Sample(0, s); err != nil || s.Features[0] != 0 || s.Features[1] != 0 {
		t.Errorf("%v, %v", s.Features, err)
	}
}

func TestIDXErrors(t *testing.T) {
	for _, test := range []struct {
		name           string
		images, labels string
		want           string
	}{
		{"no images", "", twoLabels, "DIR/IMG, with or without .gz: file does not exist"},
		{"no labels", twoImages, "", "DIR/LAB, with or without .gz: file does not exist"},
		{"empty", idx(nil, 0, 2, 2), twoLabels, "DIR/IMG: dimension 0 is 0: must be at least 1"},
		{"magic", "\x89PNG" + twoImages, twoLabels, "DIR/IMG: begins with 89 50 4e 47, but an IDX file of 3 dimensions begins with 00 00 08 03"},
		{"swapped", twoLabels + "........", twoLabels, "DIR/IMG: begins with 00 00 08 01, but an IDX file of 3 dimensions begins with 00 00 08 03"},
		{"header", twoImages[:7], twoLabels, "DIR/IMG: truncated: 7 of 16 bytes of header: unexpected EOF"},
		{"truncated", twoImages[:20], twoLabels, "DIR/IMG: truncated: 4 of 8 bytes"},
		{"too long", twoImages + "x", twoLabels, "DIR/IMG: contains more than the 8 bytes that its header declares"},
		{"hostile", idx(nil, 1<<31, 1<<31, 1<<31), twoLabels, "DIR/IMG: dimension 1 is 2147483648: the contents would exceed the 4294967296 bytes that may be read"},
		{"counts", twoImages, idx([]byte{1}, 1), "2 images in DIR/IMG, but 1 labels in DIR/LAB"},
		{"label", twoImages, idx([]byte{1, 4}, 2), "DIR/LAB: label 4 of image 1: must be below data.classes (4)"},
	} {
		files := map[string]string{imageFile: test.images, labelFile: test.labels}
		for name, content := range files {
			if content == "" {
				delete(files, name)
			}
		}
		dir := folder(t, files)
		_, err := OpenIDX(IDXOptions{Path: dir, Classes: 4})
		got := strings.NewReplacer(dir, "DIR", imageFile, "IMG", labelFile, "LAB").Replace(fmt.Sprint(err))
		if got != "read images: "+test.want {
			t.Errorf("%s: %s\nwant read images: %s", test.name, got, test.want)
		}
	}
}

func TestIDXDamagedGzip(t *testing.T) {
	whole := gz(idx(make([]byte, 1<<16), 1<<10, 8, 8))
	dir := folder(t, map[string]string{imageFile + ".gz": whole[:len(whole)-8], labelFile: twoLabels})
	_, err := OpenIDX(IDXOptions{Path: dir, Classes: 4})
	if err == nil || !strings.Contains(err.Error(), "truncated after 65536 of 65536 bytes: unexpected EOF") {
		t.Errorf("%v", err)
	}
}

// TestFashionMNIST checks that real images are read correctly, if Debian's package
// dataset-fashion-mnist is installed. It reads the test images, which are fewer, through
// links that bear the names of the training files.
func TestFashionMNIST(t *testing.T) {
	const from = "/usr/share/datasets/fashion-mnist"
	dir := t.TempDir()
	for _, name := range []string{imageFile, labelFile} {
		small := filepath.Join(from, strings.Replace(name, "train", "t10k", 1)+".gz")
		if _, err := os.Stat(small); err != nil || testing.Short() {
			t.Skip("not installed, or -short: ", err)
		}
		if err := os.Symlink(small, filepath.Join(dir, name+".gz")); err != nil {
			t.Fatal(err)
		}
	}
	set, err := OpenIDX(IDXOptions{Path: dir, Classes: 10})
	if err != nil {
		t.Fatal(err)
	}
	if set.Len() != 10000 || set.Shape() != (Shape{Features: 784, Classes: 10}) {
		t.Errorf("%d samples of %+v", set.Len(), set.Shape())
	}
	s := set.Shape().New()
	var sum, squares float64
	for i := range set.Len() {
		if err := set.Sample(i, s); err != nil {
			t.Fatal(err)
		}
		for _, f := range s.Features {
			sum += float64(f)
			squares += float64(f) * float64(f)
		}
	}
	n := float64(set.Len() * 784)
	if math.Abs(sum/n) > 1e-4 || math.Abs(squares/n-1) > 1e-4 {
		t.Errorf("mean %g, variance %g", sum/n, squares/n)
	}
}

func FuzzIDX(f *testing.F) {
	f.Add([]byte(twoImages))
	f.Add([]byte(idx(nil, 1<<31, 1<<31, 1<<31)))
	f.Fuzz(func(t *testing.T, b []byte) {
		shape, content, err := IDXOptions{}.decode(bytes.NewReader(b), 3, int64(len(b)))
		if err == nil && len(content) != shape[0]*shape[1]*shape[2] {
			t.Errorf("%v with %d bytes", shape, len(content))
		}
	})
}
