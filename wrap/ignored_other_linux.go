//go:build !cgo

package wrap

// keepIgnored does nothing: which signals this process was started to ignore can no
// longer be known, except SIGHUP and SIGINT, which Go's runtime leaves ignored.
func keepIgnored() {}
