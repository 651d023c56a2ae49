// Package wraptest has what the tests of several packages below wrap need.
package wraptest
