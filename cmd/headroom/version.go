package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/urfave/cli/v2"

	"headroom/cmd/headroom/ui"
)

// version is set by the linker in a release build.
var version string

func versionCommand(u *ui.UI) *cli.Command {
	return &cli.Command{
		Name:        "version",
		Usage:       "print the version, the commit and the build information",
		Description: "headroom --version does the same.",
		Flags:       []cli.Flag{jsonFlag("print one JSON object")},
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			b := readBuild()
			if c.Bool("json") {
				return u.AnswerJSON(b)
			}
			return u.Answer(b.String())
		},
	}
}

// build is what is known about this binary.
type build struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Modified bool   `json:"modified,omitempty"` // the source tree had changes that were not committed
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func (b build) String() string {
	text := "headroom " + b.Version
	if b.Commit != "" {
		text += fmt.Sprintf(" (%.12s%s)", b.Commit, map[bool]string{true: ", modified"}[b.Modified])
	}
	return fmt.Sprintf("%s, %s, %s", text, b.Go, b.Platform)
}

// named returns the version, together with the commit that the binary was built from, if
// that is known.
func (b build) named() string {
	if b.Commit == "" {
		return b.Version
	}
	return fmt.Sprintf("%s (commit %.7s)", b.Version, b.Commit)
}

// readBuild describes this binary. Its version is the one that the linker was given, or
// else the module's version, or else "development". Its commit is the one that the go
// command recorded.
func readBuild() build {
	b := build{Version: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if ok {
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				b.Commit = s.Value
			case "vcs.modified":
				b.Modified = s.Value == "true"
			}
		}
	}
	if b.Version == "" && ok && info.Main.Version != "(devel)" {
		b.Version = info.Main.Version
	}
	if b.Version == "" {
		b.Version = "development"
	}
	return b
}
