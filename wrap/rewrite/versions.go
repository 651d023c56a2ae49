package rewrite

import (
	"io/fs"
	"path"
	"strings"
)

// Versions returns the version of the package that the profile needs in order to resume,
// keyed by the package's name. It returns nil if the profile needs no package, or if the
// version is not known.
func Versions(m *Match) map[string]string {
	name := m.Profile.Resume.Needs.Package
	if version := version(m, name); name != "" && version != "" {
		return map[string]string{name: version}
	}
	return nil
}

// version returns the version of a Python package in the environment that the command is
// started from. It reads the version from the folder that installers leave beside the
// package, and runs nothing. It returns "" if the version is not known, or if there are
// several.
func version(m *Match, name string) (found string) {
	if m.Given.Files == nil {
		return ""
	}
	name = strings.ToLower(strings.ReplaceAll(name, "-", "_"))
	for _, bin := range binaries(m) {
		for _, below := range []string{"lib/python3*/site-packages", "lib/python3/dist-packages", "local/lib/python3*/dist-packages"} {
			folders, err := fs.Glob(m.Given.Files, path.Join(path.Dir(path.Dir(bin)), below, name+"-*.dist-info"))
			if err != nil {
				return ""
			}
			for _, folder := range folders {
				version := strings.TrimSuffix(strings.TrimPrefix(path.Base(folder), name+"-"), ".dist-info")
				if found != "" && found != version {
					return "" // it is not known which Python the command uses
				}
				found = version
			}
		}
		if found != "" {
			return found
		}
	}
	return ""
}

// binaries returns the files of the programs in the command, from the training program out
// to the outermost wrapper. Only files in a folder named bin count. The paths are absolute,
// but without the leading slash.
func binaries(m *Match) (files []string) {
	for i := min(m.Launch.At, len(m.Command.Args)-1); i >= 0; i-- {
		for _, candidate := range m.Command.Candidates(m.Command.Args[i]) {
			name := m.Command.Abs(candidate)
			if info, err := fs.Stat(m.Given.Files, name); err == nil && info.Mode().IsRegular() && path.Base(path.Dir(name)) == "bin" {
				files = append(files, name)
				break
			}
		}
	}
	return files
}
