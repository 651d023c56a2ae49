package profile

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"sync"
)

//go:embed builtin/*.yaml
var embedded embed.FS

// Builtin returns the profiles that come with headroom, the files in builtin/; they must
// not be modified. It is safe for concurrent use.
func Builtin() []Profile { return slices.Clone(builtins()) }

var builtins = sync.OnceValue(func() []Profile {
	all, err := Load(embedded, "builtin")
	if err != nil {
		panic("profile: built-in profiles: " + err.Error())
	}
	for i := range all {
		all[i].File = ""
	}
	return all
})

// Load reads the profile in the file name or, if name is a folder, those in every
// .yaml file in that folder. files is the file system that name is in. The error joins
// all problems. Two profiles with the same name are a problem, too.
func Load(files fs.FS, name string) ([]Profile, error) {
	names := []string{name}
	if info, err := fs.Stat(files, name); err == nil && info.IsDir() {
		if names, err = fs.Glob(files, path.Join(name, "*.yaml")); err != nil {
			return nil, fmt.Errorf("read profiles: %w", err)
		}
	}
	var all []Profile
	var problems []error
	for _, name := range names {
		content, err := fs.ReadFile(files, name)
		if err != nil {
			problems = append(problems, fmt.Errorf("read profile: %w", err))
			continue
		}
		p, err := Parse(name, content)
		if err == nil && slices.ContainsFunc(all, func(q Profile) bool { return q.Name == p.Name }) {
			err = &Error{name, "name", p.Name, "a profile in another file has this name, too"}
		}
		if problems = append(problems, err); err == nil {
			all = append(all, p)
		}
	}
	return all, errors.Join(problems...)
}

// Over returns the profiles of both lists, in order. If both have a profile of the same
// name, only the one in first is kept, so that a user's profile replaces a built-in one.
func Over(first, then []Profile) []Profile {
	all := slices.Clone(first)
	for _, p := range then {
		if !slices.ContainsFunc(first, func(q Profile) bool { return q.Name == p.Name }) {
			all = append(all, p)
		}
	}
	return all
}
