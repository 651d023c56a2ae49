package main

import (
	"strings"
	"testing"

	"headroom/cmd/headroom/ui"
	"headroom/configs"
)

// TestOpenJobLooksAgain checks that openJob refuses a folder that holds another run.
// Another process may have started and finished that run after goOn found the folder free
// and before openJob took it.
func TestOpenJobLooksAgain(t *testing.T) {
	inEmptyFolder(t, "endless.yaml", endless)
	open := func(set string) error {
		cfg, err := configs.Load("endless.yaml", []string{set})
		if err != nil {
			t.Fatal(err)
		}
		_, folder, err := openJob(cfg)
		if err != nil {
			return err
		}
		return folder.Close()
	}
	if err := open("batch.effective=8"); err != nil {
		t.Fatal(err)
	}
	if err := open("batch.effective=16"); ui.ExitStatus(err) != 2 || !strings.Contains(err.Error(), "batch.effective: 8 → 16") {
		t.Errorf("error %v, want that the folder holds another run", err)
	}
	if err := open("train.steps=9"); err != nil {
		t.Errorf("the folder was left locked, or more steps refused: %v", err)
	}
}
