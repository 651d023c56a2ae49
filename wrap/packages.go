package wrap

import (
	"io/fs"
	"path"
	"strings"
)

// versions are the versions of the packages that the profile needs, as far as they are
// known.
func (m *Match) versions() map[string]string {
	name := m.Profile.Resume.Needs.Package
	if version := m.version(name); name != "" && version != "" {
		return map[string]string{name: version}
	}
	return nil
}

// version is the version of a Python package in the environment that the command is started
// from, according to the folder that installers leave beside the package; "" if it is
// not known or there are several. Nothing is run.
func (m *Match) version(name string) (found string) {
	if m.given.Files == nil {
		return ""
	}
	name = strings.ToLower(strings.ReplaceAll(name, "-", "_"))
	for _, bin := range m.binaries() {
		for _, below := range []string{"lib/python3*/site-packages", "lib/python3/dist-packages", "local/lib/python3*/dist-packages"} {
			folders, err := fs.Glob(m.given.Files, path.Join(path.Dir(path.Dir(bin)), below, name+"-*.dist-info"))
			if err != nil {
				return ""
			}
			for _, folder := range folders {
				version := strings.TrimSuffix(strings.TrimPrefix(path.Base(folder), name+"-"), ".dist-info")
				if found != "" && found != version {
					return "" // there is no telling which Python the command uses
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

// binaries are the files of the command's programs up to the one that trains, the
// innermost first, as paths from the root without the leading slash.
func (m *Match) binaries() (files []string) {
	for i := min(m.Launch.At, len(m.Command.Args)-1); i >= 0; i-- {
		for _, candidate := range m.Command.candidates(m.Command.Args[i]) {
			name := m.Command.abs(candidate)
			if info, err := fs.Stat(m.given.Files, name); err == nil && info.Mode().IsRegular() && path.Base(path.Dir(name)) == "bin" {
				files = append(files, name)
				break
			}
		}
	}
	return files
}
