// Package edit reads and changes single values in configuration files of four formats. An
// edit leaves every byte outside the value as it is. Start with [Format.Find] and
// [Format.Set]. Set proves that an edit changes nothing but the value: it decodes the file
// before and after.
package edit
